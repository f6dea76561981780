package route

import (
	"cmp"
	"slices"
	"strings"
)

// A difference is what one table's hosts have more, and no more, than another's.
type difference[A any] struct {
	any     bool
	dropped bool // a route that could not be compiled has come or gone
	gone    map[*expanded[A]]bool
	hosts   []*changedHost[A]
	at      map[hostName]*changedHost[A]
}

// A hostName is one that routes are for.
type hostName struct {
	name   string
	single bool // a wildcard for one label
}

type changedHost[A any] struct {
	hostName
	more []*expanded[A]
}

func (d *difference[A]) remove(e *expanded[A]) {
	d.gone[e] = true
	d.each(e, func(*changedHost[A]) {})
}

func (d *difference[A]) add(e *expanded[A]) {
	d.each(e, func(h *changedHost[A]) {
		if n := len(h.more); n == 0 || h.more[n-1] != e { // a route may name a host twice
			h.more = append(h.more, e)
		}
	})
}

// each calls do for each host of a route, which is one that changes.
func (d *difference[A]) each(e *expanded[A], do func(*changedHost[A])) {
	d.any = true
	if e.err != nil {
		d.dropped = true
		return
	}
	if len(e.route.Hosts) == 0 {
		do(d.host(hostName{}))
	}
	for _, name := range e.route.Hosts {
		name = strings.ToLower(name)
		do(d.host(hostName{name, e.route.SingleLabel && strings.HasPrefix(name, "*.")}))
	}
}

func (d *difference[A]) host(n hostName) *changedHost[A] {
	h := d.at[n]
	if h == nil {
		if d.at == nil {
			d.at = map[hostName]*changedHost[A]{}
		}
		h = &changedHost[A]{hostName: n}
		d.hosts, d.at[n] = append(d.hosts, h), h
	}
	return h
}

// apply makes the paths of the hosts that change.
func (d *difference[A]) apply(to *Hosts[*paths[A]]) {
	for _, h := range d.hosts { // wildcards for many labels first: those for one have their matches as well
		if !h.single {
			d.set(to, h.hostName, h.more, nil)
			one := hostName{h.name, true}
			if p, there := to.Get(one.name, true); there && strings.HasPrefix(h.name, "*.") && d.at[one] == nil && len(p.own) > 0 {
				d.set(to, one, nil, to)
			}
		}
	}
	for _, h := range d.hosts {
		if h.single {
			d.set(to, h.hostName, h.more, to)
		}
	}
}

// set gives a host its paths. A name with one more label is covered by both kinds of
// wildcards of a suffix, so what is found for those of one label has the matches of both.
func (d *difference[A]) set(to *Hosts[*paths[A]], n hostName, more []*expanded[A], wider *Hosts[*paths[A]]) {
	var own []*expanded[A]
	if before, ok := to.Get(n.name, n.single); ok {
		own = slices.DeleteFunc(slices.Clone(before.own), func(e *expanded[A]) bool { return d.gone[e] })
	}
	own = append(own, more...)
	if len(own) == 0 {
		to.unset(n.name, n.single)
		return
	}
	p := &paths[A]{own: own}
	of := own
	if wider != nil {
		if many, ok := wider.Get(n.name, false); ok {
			of = slices.Concat(own, many.own)
		}
	}
	p.fill(of)
	to.Set(n.name, n.single, p)
}

// fill sorts the matches of some routes.
func (p *paths[A]) fill(of []*expanded[A]) {
	var exact, prefix map[string][]Target[A]
	for _, e := range of {
		for _, t := range e.targets {
			switch t.Match.PathType {
			case PathRegexp:
				if t.Match.Pattern != nil { // without one it covers nothing
					p.regexps = append(p.regexps, t)
				}
			case PathExact:
				add(&exact, t.path, t)
			default:
				add(&prefix, t.Prefix, t)
			}
		}
	}
	slices.SortStableFunc(p.regexps, func(x, y Target[A]) int {
		return cmp.Or(cmp.Compare(len(y.Match.Pattern.String()), len(x.Match.Pattern.String())), precedence(x, y))
	})
	p.exact, p.prefix = sorted(exact), sorted(prefix)
}

func add[A any](m *map[string][]Target[A], path string, t Target[A]) {
	if *m == nil {
		*m = map[string][]Target[A]{}
	}
	(*m)[path] = append((*m)[path], t)
}
