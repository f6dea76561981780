package watchcache

import (
	"context"
	"strings"
	"testing"
	"time"
)

// TestQuestionPanics: readers hear of a panic of the store, and the next
// question is asked.
func TestQuestionPanics(t *testing.T) {
	asked := 0
	f := fresh{ask: func(context.Context) (int64, error) {
		if asked++; asked == 1 {
			panic("a broken store")
		}
		return 7, nil
	}}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := f.revision(ctx); err == nil || !strings.Contains(err.Error(), "panic: a broken store") {
		t.Errorf("got %v", err)
	}
	if rev, err := f.revision(ctx); err != nil || rev != 7 {
		t.Errorf("got %d, %v", rev, err)
	}
}
