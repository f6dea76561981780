package dataplane

import (
	"context"
	"runtime"
	"testing"

	"knarr/addons/gateway/route"
)

// maxUnused is what a data plane may hold of which nobody wants anything: every cluster has one
// on each node.
const maxUnused = 2 << 20

func TestUnused(t *testing.T) {
	held := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc + m.StackInuse)
	}
	before := held()
	p := New(Options{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	for name, err := range p.Apply(&route.Config{}) {
		t.Error(name, err)
	}
	if now := held(); now-before > maxUnused {
		t.Errorf("%d bytes are held, more than %d", now-before, maxUnused)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
