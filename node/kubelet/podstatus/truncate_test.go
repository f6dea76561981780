package podstatus

import (
	"strings"
	"testing"
)

func TestTruncate(t *testing.T) {
	short, long := strings.Repeat("x", MaxMessage), strings.Repeat("é", MaxMessage)
	if Truncate(short) != short || len(Truncate(long)) > MaxMessage+3 || !strings.HasSuffix(Truncate("x"+long), "é...") {
		t.Errorf("%d and %d bytes", len(Truncate(short)), len(Truncate(long)))
	}
}
