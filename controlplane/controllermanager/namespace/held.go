package namespace

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// whole is how long it takes until all resources of a namespace that something
// holds are looked at again. What was under way when the namespace was deleted
// may have been made after the first look.
const whole = 5 * time.Minute

// held remembers which resources of a namespace had objects left: between looks
// at all of them only those are looked at, as nothing new can be made in a
// namespace that is being deleted.
type held struct {
	mu sync.Mutex
	of map[string]holding
}

type holding struct {
	namespace types.UID
	resources []resource
	at        time.Time // of the look at all
}

// resources are those to look at; none is all.
func (h *held) resources(name string, uid types.UID, now time.Time) []resource {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.of[name]; l.namespace == uid && now.Sub(l.at) < whole {
		return l.resources
	}
	return nil
}

// note keeps what a look at all has found left.
func (h *held) note(name string, uid types.UID, now time.Time, left []resource) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of == nil {
		h.of = map[string]holding{}
	}
	h.of[name] = holding{uid, left, now}
}

// forget is for a namespace of which nothing is left.
func (h *held) forget(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.of, name)
}
