package authz

import (
	"slices"
	"sync"
)

// decisions remembers what was allowed under one index, a bounded number.
// Looking one up allocates nothing.
type decisions struct {
	mu      sync.RWMutex
	allowed map[question]answer
}

// question is an action of a user by name. What a rule without names allows is
// remembered once for all names.
type question struct {
	user, verb, namespace, group, resource, sub, name, path string
	anyName, isResource                                     bool
}

// answer holds only for a user in exactly these groups: names of users and of
// groups come from different hands, so one key for both could be forged.
type answer struct {
	groups []string
	reason string
}

const decisionsKept = 16384

func ask(a *Attributes, anyName bool) question {
	q := question{
		user: a.User.GetName(), verb: a.Verb, namespace: a.Namespace, group: a.Group,
		resource: a.Resource, sub: a.Subresource, path: a.Path, isResource: a.IsResource, anyName: anyName,
	}
	if !anyName {
		q.name = a.Name
	}
	return q
}

func (d *decisions) get(a *Attributes) (reason string, ok bool) {
	groups := a.User.GetGroups()
	d.mu.RLock()
	defer d.mu.RUnlock()
	got, ok := d.allowed[ask(a, true)]
	if ok && slices.Equal(got.groups, groups) {
		return got.reason, true
	}
	got, ok = d.allowed[ask(a, false)]
	return got.reason, ok && slices.Equal(got.groups, groups)
}

func (d *decisions) put(a *Attributes, anyName bool, reason string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.allowed == nil || len(d.allowed) >= decisionsKept {
		d.allowed = map[question]answer{}
	}
	// Whoever made the groups may still change them.
	d.allowed[ask(a, anyName)] = answer{slices.Clone(a.User.GetGroups()), reason}
}
