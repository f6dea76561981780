// Package iptables is kube-proxy's mode for hosts whose rules are iptables': chains
// for each Service, as upstream's mode of that name has them. It reads and writes the
// tables nat and filter of both families with the host's iptables-save and
// iptables-restore.
//
// A change writes the chains of the Services that changed, and those that all Services
// share, whose length grows with their number: nftables is the mode for many Services.
package iptables

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/client-go/tools/cache"

	"knarr/node/kubeproxy"
	"knarr/node/kubeproxy/conntrack"
)

// A Dataplane is kube-proxy's, by iptables.
type Dataplane struct {
	families []*family
	metrics  *metrics
}

// New finds the host's programs. name tells apart the rules of several proxies of one
// host. Connections from outside of the cluster's ranges are masqueraded; node ports
// are at the addresses of this node in nodePorts, or else at those of its Node object.
func New(name string, cluster, nodePorts []netip.Prefix) (*Dataplane, error) {
	p, err := find()
	if err != nil {
		return nil, err
	}
	d := &Dataplane{metrics: newMetrics()}
	for _, v6 := range []bool{false, true} {
		w := renderer{names: names{prefix(name)}, v6: v6, cluster: ofFamily(cluster, v6)}
		w.masqueradeOutside = len(w.cluster) > 0
		d.families = append(d.families, &family{programs: p.of(v6), state: state{renderer: w, nodePortsIn: ofFamily(nodePorts, v6)}, metrics: d.metrics})
	}
	return d, nil
}

// prefix begins the names of chains: a chain's name has 28 bytes at most, of which
// kind and hash take 16.
func prefix(name string) string {
	p := strings.ToUpper(name)
	return p[:min(len(p), 11)] + "-"
}

func ofFamily(all []netip.Prefix, v6 bool) (some []netip.Prefix) {
	for _, p := range all {
		if p.Addr().Is6() == v6 {
			some = append(some, p.Masked())
		}
	}
	return some
}

// Apply writes both families' rules.
func (d *Dataplane) Apply(changes map[cache.ObjectName]kubeproxy.Rules, all bool) (map[cache.ObjectName]error, error) {
	refused := map[cache.ObjectName]error{}
	var errs []error
	for _, f := range d.families {
		errs = append(errs, f.apply(changes, all, refused))
	}
	return refused, errors.Join(errs...)
}

// Intact says whether the chains and the ways into them are there.
func (d *Dataplane) Intact() error {
	for _, f := range d.families {
		have, err := f.read()
		if err != nil {
			return err
		}
		if missing := have.missing(f.state.hooks()); len(missing) > 0 {
			return fmt.Errorf("the rule of %s chain %s is gone", missing[0].table, missing[0].chain)
		}
		if !have.chains[f.state.canary()] {
			return fmt.Errorf("chain %s is gone", f.state.canary())
		}
	}
	return nil
}

// Changed is told of nothing: iptables has no notices.
func (d *Dataplane) Changed() <-chan struct{} { return nil }

// Close has nothing to give back.
func (d *Dataplane) Close() error { return nil }

// Remove deletes all rules of a name, if the host has iptables at all.
func Remove(name string) error {
	p, err := find()
	if err != nil {
		return nil // then there are none
	}
	var errs []error
	for _, v6 := range []bool{false, true} {
		f := family{programs: p.of(v6), state: state{renderer: renderer{names: names{prefix(name)}}}}
		errs = append(errs, f.remove())
	}
	return errors.Join(errs...)
}

// A family is IPv4's or IPv6's rules.
type family struct {
	programs
	state   state
	metrics *metrics
}

// apply writes the changed Services, or all. One that the kernel refuses is left out,
// and the others are written without it.
func (f *family) apply(changes map[cache.ObjectName]kubeproxy.Rules, all bool, refused map[cache.ObjectName]error) error {
	st := &f.state
	if all {
		st.services, st.rules = map[cache.ObjectName]rendered{}, map[cache.ObjectName]kubeproxy.Rules{}
	}
	before, stale := map[string]bool{}, conntrack.Stale{}
	var changed []cache.ObjectName
	for name, r := range changes {
		if name == (cache.ObjectName{}) {
			st.node = r
			continue
		}
		for _, c := range st.services[name].chainNames() {
			before[c] = true
		}
		kubeproxy.AddFlows(&stale, st.v6, st.rules[name], r, st.node)
		st.services[name], st.rules[name] = st.service(name, r), r
		if len(r.Fronts) == 0 {
			delete(st.services, name)
			delete(st.rules, name)
		} else {
			changed = append(changed, name)
		}
	}
	var missing []hook
	if all {
		have, err := f.read()
		if err != nil {
			return err
		}
		missing = have.missing(st.hooks())
		before = have.chains
	}
	if err := f.commit(changed, before, missing, all, refused); err != nil {
		return err
	}
	if _, err := conntrack.Forget(st.v6, stale); err != nil {
		slog.Warn("forget stale UDP flows", "err", err)
	}
	return nil
}

// commit writes until what remains is accepted.
func (f *family) commit(changed []cache.ObjectName, before map[string]bool, missing []hook, whole bool, refused map[cache.ObjectName]error) error {
	st := &f.state
	for {
		used := map[string]bool{}
		for _, c := range st.shared() {
			used[c] = true
		}
		for _, name := range changed {
			for _, c := range st.services[name].chainNames() {
				used[c] = true
			}
		}
		var gone []string
		for _, c := range slices.Sorted(maps.Keys(before)) {
			if !used[c] {
				gone = append(gone, c)
			}
		}
		s := st.write(changed, gone, missing)
		err := f.restore(s.text.String())
		f.restored(s, whole, err)
		var bad *lineError
		if !errors.As(err, &bad) || bad.line > len(s.owner) || s.owner[bad.line-1] == nobody {
			return err
		}
		owner := s.owner[bad.line-1]
		refused[owner] = fmt.Errorf("%w, at %q", bad.err, strings.Split(s.text.String(), "\n")[bad.line-1])
		delete(st.services, owner)
		delete(st.rules, owner)
		changed = slices.DeleteFunc(changed, func(n cache.ObjectName) bool { return n == owner })
	}
}
