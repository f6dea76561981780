package endpoints

import "testing"

func TestCopied(t *testing.T) {
	for _, c := range []struct{ size, copies, want int }{
		{1000, 0, 1000},
		{1000, 1, 2000},
		{1000, 5, 32000},
		{1000, 60, 1000 + maxPatchCopies},
		{maxBody, 1, maxBody + maxPatchCopies},
		{0, 3, 0},
	} {
		if got := copied(c.size, c.copies); got != c.want {
			t.Errorf("%d bytes, %d copies: %d, want %d", c.size, c.copies, got, c.want)
		}
	}
}
