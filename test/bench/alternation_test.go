package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
)

// Two sides change places at each pass, and who is left alone goes on.
func TestAlternation(t *testing.T) {
	tr := newAlternation(knarr)
	var did []string
	var wg sync.WaitGroup
	for s, n := range map[side]int{knarr: 2, upstream: 4} {
		wg.Go(func() {
			defer tr.leave(s)
			if tr.wait(t.Context(), s) != nil {
				return
			}
			for i := range n {
				if tr.pass(t.Context(), s) != nil {
					return
				}
				did = append(did, fmt.Sprint(s, i))
			}
		})
	}
	wg.Wait()
	if want := []string{"knarr0", "upstream0", "knarr1", "upstream1", "upstream2", "upstream3"}; !slices.Equal(did, want) {
		t.Errorf("%v, want %v", did, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if newAlternation(knarr).wait(ctx, upstream) == nil {
		t.Error("waited beyond the end")
	}
}
