"""The decode kernel on mma.sync, from sm_80 on: few query rows on many keys, in fixed slices."""
