// Package runtimestate reads over CRI which sandboxes and containers a runtime has
// of a pod. It writes nothing.
package runtimestate

import cri "k8s.io/cri-api/pkg/apis/runtime/v1"

// A Pod is everything that the runtime has of one pod, newest first.
type Pod struct {
	Sandboxes  []Sandbox
	Containers []*Container
}

// Latest is the newest container of that name, or nil.
func (v *Pod) Latest(name string) *Container {
	for _, c := range v.Containers {
		if c.Name() == name {
			return c
		}
	}
	return nil
}

// Previous is the newest exited container of that name older than c.
func (v *Pod) Previous(c *Container) *Container {
	after := false
	for _, o := range v.Containers {
		switch {
		case o == c:
			after = true
		case after && o.Name() == c.Name() && o.Exited():
			return o
		}
	}
	return nil
}

// ByID is the container of that id, or nil.
func (v *Pod) ByID(id string) *Container {
	for _, c := range v.Containers {
		if c.Id == id {
			return c
		}
	}
	return nil
}

// ReadySandbox is the newest sandbox if it is ready.
func (v *Pod) ReadySandbox() (Sandbox, bool) {
	if len(v.Sandboxes) > 0 && v.Sandboxes[0].Ready() {
		return v.Sandboxes[0], true
	}
	return Sandbox{}, false
}

// Running are the containers that were started and have not ended, as far as the
// runtime knows.
func (v *Pod) Running() (out []*Container) {
	for _, c := range v.Containers {
		if !c.Exited() && c.State != cri.ContainerState_CONTAINER_CREATED {
			out = append(out, c)
		}
	}
	return out
}
