package podgc

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/client-go/tools/cache"
)

// counted is a cache that counts how often it is asked for a node.
type counted struct {
	cache.Indexer
	reads int
}

func (c *counted) GetByKey(key string) (any, bool, error) {
	c.reads++
	return c.Indexer.GetByKey(key)
}

// TestQuarantine: a node that is missed is waited for, anew each time that it was back, and
// how many others are missed costs nothing.
func TestQuarantine(t *testing.T) {
	nodes := &counted{Indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)}
	r := &reconciler{nodes: nodes, missing: map[string]time.Time{}}
	now := time.Unix(1700000000, 0)
	wait := func(node string, want time.Duration) {
		t.Helper()
		if got := r.quarantined(node, now); got != want {
			t.Errorf("%s is waited for %v, want %v", node, got, want)
		}
	}
	const many = 1000
	for i := range many {
		wait(fmt.Sprint("none-", i), quarantineTime)
	}
	if nodes.reads > many {
		t.Errorf("%d nodes were looked at for %d pods", nodes.reads, many)
	}
	now = now.Add(30 * time.Second)
	wait("none-7", 10*time.Second)
	r.found("none-7")
	wait("none-7", quarantineTime)
	now = now.Add(10 * quarantineTime)
	wait("another", quarantineTime)
	if len(r.missing) != 2 { // none-7 was missed again later
		t.Errorf("%d nodes are remembered", len(r.missing))
	}
}
