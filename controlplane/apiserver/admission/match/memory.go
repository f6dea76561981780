package match

import (
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"

	"knarr/controlplane/apiserver/admission"
)

// A Memory is what the first round of a plugin that changes a write leaves to the
// second.
type Memory struct {
	last    runtime.Object  // the object at the end of the round
	invoked map[string]bool // who wants to see later changes
	again   map[string]bool // of these, those that are to
}

// MemoryOf is the plugin's memory of a write. In a second round, what others
// have changed since the first counts as a change.
func MemoryOf(a *admission.Attributes, plugin string) *Memory {
	m, ok := a.Memory[plugin].(*Memory)
	if !ok {
		if a.Memory == nil {
			a.Memory = map[string]any{}
		}
		m = &Memory{invoked: map[string]bool{}, again: map[string]bool{}}
		a.Memory[plugin] = m
	}
	if a.Round > 0 && !apiequality.Semantic.DeepEqual(m.last, a.Object) {
		m.recall()
	}
	return m
}

// recall says that all invoked before are to see the object again.
func (m *Memory) recall() {
	for key := range m.invoked {
		m.again[key] = true
	}
	clear(m.invoked)
}

// Passes says that this round does without somebody.
func (m *Memory) Passes(a *admission.Attributes, key string) bool {
	return a.Round > 0 && !m.again[key]
}

// Changed says that the object is another now, and that there is to be one more
// round.
func (m *Memory) Changed(a *admission.Attributes) {
	m.recall()
	a.Again = true
}

// Invoked records a webhook that is to see later changes.
func (m *Memory) Invoked(key string) { m.invoked[key] = true }

// End keeps the object as the round leaves it.
func (m *Memory) End(a *admission.Attributes) {
	m.last = nil
	if a.Object != nil {
		m.last = a.Object.DeepCopyObject()
	}
}
