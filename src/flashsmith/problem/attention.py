"""One attention problem: what is computed, independent of any kernel; every field is a fact."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError, Unsupported
from flashsmith.base.fields import MOST, fact, facts_of
from flashsmith.problem.mask import Mask

OPERATIONS = {
    "forward": "(O, and LSE where it is asked for, from Q, K and V)",
    "backward": "(dQ, dK and dV from Q, K, V, O, LSE and dO)",
}
BIASES = {
    "": "(none)",
    "bool": "(False hides a key from a row)",
    "same": "(added to scores, in the type of q)",
    "float32": "(added to scores)",
}
BIAS_KEYS = {
    "": "(two at once)",
    "apart": "(one by one: pairs do not lie side by side at even places)",
    "chunks": "(16 bytes at once, in every row)",
}
BIAS_SHARED = {
    "": "(none)",
    "batch": "(one for all sequences)",
    "heads": "(one for all heads)",
    "both": "(one for all)",
}
LAYOUTS = {
    "bshd": "(batch, sequence, heads, d_head)",
    "bhsd": "(batch, heads, sequence, d_head)",
}


@dataclass(frozen=True, slots=True)
class AttentionProblem:
    """Shapes, mask and scores of O = softmax(scale · Q Kᵀ + mask) V, or of its gradients.

    A fact is declared here and nowhere else: its text, its check, its bit in the kernel, the
    arguments of the API, of the torch operators and of the command line, and its row in the docs
    follow. Query row i stands at key i + `diagonal`: bottom-right aligned, at i + k_len - q_len, by
    default, and top-left where it is 0. With `causal` it sees no key behind that; windows are
    counted from there.
    """

    batch: int = fact(int, "sequences in the batch", least=0)
    heads: int = fact(int, "query heads", least=0)
    kv_heads: int = fact(int, "key and value heads; query heads are a multiple of them", least=0)
    q_len: int = fact(int, "query rows of a sequence", least=0)
    k_len: int = fact(int, "keys of a sequence", least=0)
    d_head: int = fact(int, "elements of a row of Q, K, V and O", least=0)
    dtype: DType = fact(DType, "element type of Q, K, V and O", default=DType.BF16)
    causal: bool = fact(
        bool,
        "mask keys right of the diagonal (bottom-right aligned)",
        absent=False,
        call="causal",
        option="--causal",
        compiled=True,
    )
    diagonal: int | None = fact(
        int,
        "with causal: row i sees keys up to i + this (0: top-left)",
        absent=None,
        call="diagonal",
        option="--diagonal",
    )
    scale: float | None = fact(
        float,
        "factor of Q Kᵀ; without it 1 / sqrt(d_head)",
        absent=None,
        hint="negate or scale q instead",
        call="scale",
        option="--scale",
    )
    layout: str = fact(
        str,
        "order of a tensor's dimensions",
        choices=LAYOUTS,
        absent="bshd",
        call="layout",
    )
    lse: bool = fact(
        bool,
        "write the log-sum-exp of every row too",
        absent=False,
        call="return_lse",
        option="--lse",
        compiled=True,
    )
    operation: str = fact(
        str,
        "what is computed; a configuration says it by what its kernels are",
        choices=OPERATIONS,
        absent="forward",
    )
    dlse: bool = fact(bool, "backward: a gradient of the log-sum-exp is given too", absent=False)
    dbias: bool = fact(bool, "backward: the gradient of the bias is wanted too", absent=False)
    window_left: int | None = fact(
        int,
        "keys that a row sees left of its own position; without it all",
        least=0,
        absent=None,
        call="window_left",
        option="--window-left",
        compiled=True,
    )
    window_right: int | None = fact(
        int,
        "keys that a row sees right of its own position; without it all (causal: none)",
        least=0,
        absent=None,
        call="window_right",
        option="--window-right",
    )
    softcap: float | None = fact(
        float,
        "each score s becomes softcap · tanh(s / softcap)",
        absent=None,
        call="softcap",
        option="--softcap",
        changes_scores=True,
        argument="float",
    )
    alibi: bool = fact(
        bool,
        "each score less a head's slope times the distance between row and key",
        absent=False,
        option="--alibi",
        changes_scores=True,
    )
    bias: str = fact(
        str,
        "a tensor of the caller's, an element a score: bool (False hides), same (added, of q's "
        "type) or float32 (added)",
        choices=BIASES,
        absent="",
        option="--bias",
        changes_scores=True,
    )
    bias_keys: str = fact(
        str,
        "how keys of the bias are read: apart, one by one, or in chunks of 16 bytes",
        choices=BIAS_KEYS,
        absent="",
        compiled=True,
    )
    bias_shared: str = fact(
        str,
        "which dimensions of the bias have one matrix for all: batch, heads or both",
        choices=BIAS_SHARED,
        absent="",
    )
    sinks: bool = fact(
        bool,
        "a logit of each head joins the softmax's denominator, and so the log-sum-exp",
        absent=False,
        option="--sinks",
        exact=True,
    )
    k_lengths: bool = fact(
        bool,
        "how many keys each sequence has is read from memory, up to k_len",
        absent=False,
        option="--k-lengths",
        exact=True,
    )
    q_lengths: bool = fact(
        bool,
        "how many rows of Q each sequence has is read from memory; O is 0 behind them",
        absent=False,
        option="--q-lengths",
        exact=True,
    )
    k_starts: bool = fact(
        bool,
        "the first key of each sequence is read from memory; those before it are padding",
        absent=False,
        option="--k-starts",
        exact=True,
    )
    sequences: int = fact(
        int,
        "packed one behind the other in a batch of one; where they begin is read from memory",
        least=0,
        absent=0,
        option="--sequences",
        exact=True,
    )
    page: int = fact(
        int,
        "rows of a page of K and V, which lie where a table says; without it they are contiguous",
        least=0,
        absent=0,
        option="--page",
        exact=True,
    )
    pages: int = fact(
        int,
        "with page: pages of K and V that there are, of all sequences",
        least=0,
        absent=0,
        option="--pages",
    )

    d_v: int = fact(
        int,
        "elements of a row of V and O where they are fewer than d_head; without it as many",
        least=0,
        absent=0,
        option="--d-v",
        exact=True,
    )
    batch_invariant: bool = fact(
        bool,
        "a row's bits follow from its own sequence, whatever shares the batch",
        absent=False,
        call="batch_invariant",
        option="--batch-invariant",
    )
    deterministic: bool = fact(
        bool,
        "backward: the same bits every time; without it sums may be taken in any order",
        absent=True,
        call="deterministic",
    )

    def __post_init__(self) -> None:
        for name, what in FACTS.items():
            value = getattr(self, name)
            obstacle = "" if value is what.absent else what.obstacle(name, value)
            if obstacle:
                raise ArgumentError(obstacle)
        if self.kv_heads and self.heads % self.kv_heads:
            raise ArgumentError(
                f"heads is {self.heads} and kv_heads is {self.kv_heads}; the query heads must be a "
                f"multiple of the key heads."
            )
        if self.alibi and abs(self.mask.alignment) > MOST:
            raise ArgumentError(
                f"diagonal is {self.diagonal} and distances are counted from it; kernels count in "
                f"32 bits, up to {MOST:,}."
            )
        if self.d_v and not self.d_v < self.d_head:
            raise ArgumentError(
                f"d_v is {self.d_v} and d_head is {self.d_head}; rows of V may be narrower than "
                f"those of K; leave d_v out where they are not."
            )
        if self.sinks and not self.k_len:
            raise ArgumentError("sinks is True and k_len is 0; there is no key to share rows with.")
        self._require_lengths()
        if bool(self.page) != bool(self.pages) and self.k_len:
            raise ArgumentError(
                f"page is {self.page} and pages is {self.pages}; a pool of pages needs both, and "
                f"contiguous tensors neither."
            )
        if self.operation == "backward" and self.lse:
            raise ArgumentError(
                "lse is True and operation is 'backward', which takes the log-sum-exp and does not "
                "write it; leave lse out."
            )
        for name in ("dlse", "dbias") if self.operation != "backward" else ():
            if getattr(self, name):
                raise ArgumentError(
                    f"{name} is True and operation is {self.operation!r}; gradients belong to a "
                    f"backward pass; leave {name} out."
                )
        if self.dbias and self.bias in ("", "bool"):
            raise ArgumentError(
                f"dbias is True and bias is {self.bias!r}; only numbers that are added to scores "
                f"have a gradient; leave dbias out."
            )

    def _require_lengths(self) -> None:
        """Raises where what is said of sequences' lengths cannot be said together."""
        if self.sequences and self.batch != 1:
            raise ArgumentError(
                f"sequences is {self.sequences} and batch is {self.batch}; packed sequences are a "
                f"batch of one; make batch 1."
            )
        if self.sequences and self.page and not self.k_lengths:
            raise ArgumentError(
                f"sequences is {self.sequences}, k_lengths {self.k_lengths} and page {self.page}; "
                f"packed sequences whose keys lie in pages have their lengths in memory; give "
                f"k_lengths too."
            )
        if self.page and (self.q_lengths or self.k_starts):
            raise Unsupported(
                f"page is {self.page}, q_lengths {self.q_lengths} and k_starts {self.k_starts}; no "
                f"kernel that reads pages takes either; leave out q_lengths and k_starts: every "
                f"sequence must begin with its first key and end with its last query row."
            )
        others = {
            "sequences": "unpack the sequences",
            "k_lengths": "hide the keys behind a sequence's end in the bias",
            "q_lengths": "leave out what O holds behind a sequence's end",
            "k_starts": "hide the keys before a sequence's first in the bias",
            "page": "pass contiguous k and v",
        }
        for other in others if self.bias else ():
            if getattr(self, other):
                raise Unsupported(
                    f"bias and {other} are both given; no kernel computes them together yet; "
                    f"{others[other]}."
                )

    def __lt__(self, other: AttentionProblem) -> bool:
        """Fact by fact, in the order of their declaration; one that is absent comes first."""
        for name in FACTS:
            own, others = getattr(self, name), getattr(other, name)
            if own != others:
                return own is None or (others is not None and own < others)
        return False

    def __repr__(self) -> str:
        """Every fact by name; those that later versions added where they hold.

        Inputs of cases are drawn by this text: those without a new fact stay as they were.
        """
        shown = [n for n in FACTS if n in _FIRST_FACTS or getattr(self, n) != FACTS[n].absent]
        values = (f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{type(self).__name__}({', '.join(values)})"

    @property
    def softmax_scale(self) -> float:
        """The factor of Q Kᵀ."""
        return self.scale if self.scale is not None else 1.0 / math.sqrt(max(self.d_head, 1))

    @property
    def v_width(self) -> int:
        """Elements of a row of V and O."""
        return self.d_v or self.d_head

    @property
    def mask(self) -> Mask:
        """Which keys each row sees."""
        return self.mask_of(self.q_len, self.k_len)

    def mask_of(self, q_len: int, k_len: int) -> Mask:
        """The same of a sequence with lengths of its own."""
        alignment = k_len - q_len if self.diagonal is None else self.diagonal
        right = 0 if self.causal else self.window_right
        return Mask(q_len, k_len, self.window_left, right, alignment)

    @property
    def edges(self) -> Mask:
        """The mask counted from a sequence's own alignment, where its lengths are in memory."""
        return Mask(self.q_len, self.k_len, self.window_left, self.mask.right, self.diagonal or 0)

    @property
    def has_own_lengths(self) -> bool:
        """Whether lengths of sequences are read from memory."""
        return bool(self.sequences or self.k_lengths or self.q_lengths or self.k_starts)

    @property
    def is_listed(self) -> bool:
        """Whether forward kernels take their q tiles from a list that is made on the device."""
        return self.has_own_lengths and not (self.page and self.sequences)

    @property
    def requests(self) -> int:
        """Sequences, each with a length and pages of its own: packed, or the batch."""
        return self.sequences or self.batch

    @property
    def boundaries(self) -> int:
        """Where packed sequences begin and the last one ends: so many numbers."""
        return self.sequences + 1

    @property
    def bias_sequences(self) -> int:
        """Sequences that have a bias of their own; one where they share it."""
        return 1 if self.bias_shared in ("batch", "both") else self.batch

    @property
    def bias_heads(self) -> int:
        """The same of the heads of a sequence."""
        return 1 if self.bias_shared in ("heads", "both") else self.heads

    @property
    def area(self) -> float:
        """What masks leave of the scores of one head; packed sequences count as equally long."""
        if not self.sequences:
            return self.batch * self.mask.area
        q_len = self.q_len // self.sequences
        k_len = self.k_len if self.page else self.k_len // self.sequences
        return self.sequences * self.mask_of(q_len, k_len).area

    @property
    def table_pages(self) -> int:
        """Pages of one sequence in the table of pages."""
        return -(-self.k_len // self.page) if self.page else 0

    @property
    def group(self) -> int:
        """Query heads that share one head of K and V."""
        return self.heads // self.kv_heads if self.kv_heads else 1

    @property
    def is_batch_invariant(self) -> bool:
        """Whether a row's bits must not depend on what shares the batch: asked for, or served."""
        return bool(self.batch_invariant or self.has_own_lengths or self.page)

    @property
    def is_empty(self) -> bool:
        """Whether there is no output, or no key to look at."""
        return not (self.batch and self.heads and self.q_len and self.k_len)


FACTS = facts_of(AttentionProblem)
_FIRST_FACTS = [*FACTS][: [*FACTS].index("operation")]
