"""The decode kernel of sm_90: few query rows on many keys, K and V by TMA."""
