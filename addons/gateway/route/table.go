package route

import (
	"cmp"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"knarr/internal/run"
)

// A Table finds the rule for a request among the routes of one Listener. It is never
// changed. A is what the caller made of each rule.
//
// Of several matches that cover a request the one wins that comes first by
// these: an exact host, then the longest wildcard; an exact path, then the longest
// regular expression, then the longest prefix; one with a method; the most headers, then
// cookies, then parameters; one with sources; the older route, then by its name; the place
// in its route.
type Table[A any] struct {
	hosts Hosts[*paths[A]]
	// routes are what it was made of, expanded what became of each.
	routes   []*Route
	expanded []*expanded[A]
	// Dropped are the routes that could not be compiled, by their names: they are left out,
	// and the others are served.
	Dropped map[string]error
}

// A Target is where a request goes: one Match of a rule.
type Target[A any] struct {
	Route *Route
	Rule  *Rule
	Match *Match
	// Prefix is the clean form of a Match's path of type Prefix, without final slash.
	Prefix string
	Action A

	path          string // the key of a match that is exact
	unconditional bool
	rule, match   int // places, to decide between equals
}

// paths are the matches for one host name.
type paths[A any] struct {
	exact, prefix byPath[A]
	regexps       []Target[A]
	own           []*expanded[A] // the routes of this very name
}

// byPath holds the matches of each path, in the order that they are tried. Few paths
// are searched one after the other, the longest first; many through a map.
type byPath[A any] struct {
	few []pathTargets[A]
	// many is nil if few holds them; longest is the length of its longest key.
	many    map[string][]Target[A]
	longest int
}

type pathTargets[A any] struct {
	path    string
	targets []Target[A]
}

// fewPaths is how many are compared one by one: about as long as one lookup takes.
const fewPaths = 4

// everything is what a Rule without matches covers.
var everything = Match{PathType: PathPrefix, Path: "/"}

// An expanded is a route and a target for each match of its rules; with err, it is not served.
type expanded[A any] struct {
	route   *Route
	targets []Target[A]
	err     error
}

// Compile makes a table of routes. Each rule is given to action once; what that returns
// is the Action of the rule's targets.
func Compile[A any](routes []*Route, action func(*Route, *Rule) A) *Table[A] {
	return (&Table[A]{}).Next(routes, action, nil)
}

// Changed are the places of two lists between which they differ: both have the same before,
// and the same after. Whoever changes a few of many keeps their order.
func Changed[T comparable](before, now []T) (from, beforeTo, nowTo int) {
	most := min(len(before), len(now))
	for from < most && before[from] == now[from] {
		from++
	}
	same := 0
	for same < most-from && before[len(before)-1-same] == now[len(now)-1-same] {
		same++
	}
	return from, len(before) - same, len(now) - same
}

// Same says whether two maps are the very same one.
func Same[M ~map[K]V, K comparable, V any](a, b M) bool {
	return a != nil && reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}

// Next is the table of other routes. Routes that t has stay as they are, if keep says of each
// of their targets that its action may; without keep all may. Only hosts of the others are
// compiled: t shares the rest.
func (t *Table[A]) Next(routes []*Route, action func(*Route, *Rule) A, keep func(*Target[A]) bool) *Table[A] {
	from, oldTo, newTo := Changed(t.routes, routes)
	known := make(map[*Route]*expanded[A], oldTo-from) // of those between
	for i := from; i < oldTo; i++ {
		known[t.routes[i]] = t.expanded[i]
	}
	next := &Table[A]{routes: routes, expanded: make([]*expanded[A], len(routes)), Dropped: t.Dropped}
	copy(next.expanded, t.expanded[:from])
	copy(next.expanded[newTo:], t.expanded[oldTo:])
	d := difference[A]{gone: map[*expanded[A]]bool{}}
	for i, r := range routes {
		e := next.expanded[i]
		if i >= from && i < newTo {
			if e = known[r]; e != nil {
				delete(known, r)
			}
		} else if keep == nil {
			continue
		}
		if e != nil && keep != nil && !e.stays(keep) {
			d.remove(e)
			e = nil
		}
		if e == nil {
			e = expandRoute(r, action)
			d.add(e)
		}
		next.expanded[i] = e
	}
	for _, e := range known {
		d.remove(e)
	}
	if !d.any {
		next.hosts = t.hosts
		return next
	}
	next.hosts = t.hosts.clone()
	d.apply(&next.hosts)
	if d.dropped {
		next.Dropped = nil
		for _, e := range next.expanded {
			if e.err != nil {
				if next.Dropped == nil {
					next.Dropped = map[string]error{}
				}
				next.Dropped[e.route.Name] = e.err
			}
		}
	}
	return next
}

// Targets calls do for every target, until it says no.
func (t *Table[A]) Targets(do func(*Target[A]) bool) {
	for _, e := range t.expanded {
		for i := range e.targets {
			if !do(&e.targets[i]) {
				return
			}
		}
	}
}

func (e *expanded[A]) stays(keep func(*Target[A]) bool) bool {
	for i := range e.targets {
		if !keep(&e.targets[i]) {
			return false
		}
	}
	return true
}

// expandRoute is a target for each match of a route's rules.
func expandRoute[A any](r *Route, action func(*Route, *Rule) A) *expanded[A] {
	e := &expanded[A]{route: r}
	e.targets, e.err = expand(r, action)
	return e
}

// expand is a target for each match of a route's rules. What tenants write must not end a
// compilation: a route at which it fails is refused.
func expand[A any](r *Route, action func(*Route, *Rule) A) (all []Target[A], err error) {
	err = run.Catch("gateway: compile "+r.Name, func() error {
		all = make([]Target[A], 0, len(r.Rules))
		for j := range r.Rules {
			rule := &r.Rules[j]
			t := Target[A]{Route: r, Rule: rule, Action: action(r, rule), rule: j}
			if len(rule.Matches) == 0 {
				all = append(all, t.of(&everything))
			}
			for i := range rule.Matches {
				t.match = i
				all = append(all, t.of(canonical(&rule.Matches[i])))
			}
		}
		return nil
	})
	return all, err
}

// of is the target of one of its rule's matches.
func (t Target[A]) of(m *Match) Target[A] {
	t.Match, t.unconditional = m, m.unconditional()
	switch m.PathType {
	case PathRegexp:
	case PathExact:
		t.path = EncodePath(m.Path)
	default:
		t.Prefix = strings.TrimSuffix(EncodePath(m.Path), "/")
	}
	return t
}

// canonical is a match with the names of its headers as in http.Header, and with
// patterns that cover values as a whole.
func canonical(m *Match) *Match {
	with := *m
	with.Headers, with.Cookies, with.Query = whole(m.Headers), whole(m.Cookies), whole(m.Query)
	if len(m.Headers) == 0 && len(m.Cookies) == 0 && len(m.Query) == 0 {
		return m
	}
	for i := range with.Headers {
		with.Headers[i].Name = http.CanonicalHeaderKey(with.Headers[i].Name)
	}
	return &with
}

// nothing matches no text.
var nothing = regexp.MustCompile(`[^\s\S]`)

// WholePattern is a pattern that must match a text as a whole. What compiles alone need
// not do so in another's place (an open quotation, \Q): that matches nothing.
func WholePattern(p *regexp.Regexp) *regexp.Regexp {
	if re, err := regexp.Compile(`^(?:` + p.String() + `)$`); err == nil {
		return re
	}
	return nothing
}

func whole(values []Value) []Value {
	values = slices.Clone(values)
	for i := range values {
		if p := values[i].Pattern; p != nil {
			values[i].Pattern = WholePattern(p)
		}
	}
	return values
}

func sorted[A any](m map[string][]Target[A]) (p byPath[A]) {
	for path, targets := range m {
		if len(targets) > 1 {
			slices.SortStableFunc(targets, precedence)
		}
		p.longest = max(p.longest, len(path))
		if len(m) <= fewPaths {
			p.few = append(p.few, pathTargets[A]{path, targets})
		}
	}
	if len(m) > fewPaths {
		p.many = m
	}
	slices.SortFunc(p.few, func(x, y pathTargets[A]) int { return cmp.Compare(len(y.path), len(x.path)) })
	return p
}

// precedence orders matches of one path.
func precedence[A any](x, y Target[A]) int {
	has := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(has(y.Match.Method != ""), has(x.Match.Method != "")),
		cmp.Compare(len(y.Match.Headers), len(x.Match.Headers)),
		cmp.Compare(len(y.Match.Cookies), len(x.Match.Cookies)),
		cmp.Compare(len(y.Match.Query), len(x.Match.Query)),
		cmp.Compare(has(len(y.Match.Sources) > 0), has(len(x.Match.Sources) > 0)),
		x.Route.Created.Compare(y.Route.Created),
		cmp.Compare(x.Route.Name, y.Route.Name),
		cmp.Compare(x.rule, y.rule),
		cmp.Compare(x.match, y.match),
	)
}

// Match finds the target of a request; nil if no route covers it. It allocates nothing
// unless a condition must decode or join values.
func (t *Table[A]) Match(r *Request) *Target[A] {
	for step := first(r.Host); !step.done; {
		var p *paths[A]
		var ok bool
		if p, step, ok = t.hosts.next(step); !ok {
			continue
		}
		if found := p.match(r); found != nil {
			return found
		}
	}
	return nil
}

func (p *paths[A]) match(r *Request) *Target[A] {
	if found := choose(p.exact.get(r.Path), r); found != nil {
		return found
	}
	for i := range p.regexps {
		t := &p.regexps[i]
		// The leftmost match is at the begin if any is.
		if at := t.Match.Pattern.FindStringIndex(r.Path); at != nil && at[0] == 0 && (t.unconditional || t.Match.conditions(r)) {
			return t
		}
	}
	for i := range p.prefix.few {
		if f := &p.prefix.few[i]; HasPrefix(r.Path, f.path) {
			if found := choose(f.targets, r); found != nil {
				return found
			}
		}
	}
	if p.prefix.many == nil {
		return nil
	}
	return p.prefix.longestFirst(r)
}

// longestFirst tries the path and each of its beginnings that end before a slash. A
// path's part that is longer than every prefix is not looked at.
func (p *byPath[A]) longestFirst(r *Request) *Target[A] {
	end := len(r.Path)
	if end > p.longest {
		end = strings.LastIndexByte(r.Path[:p.longest+1], '/')
	}
	for end >= 0 {
		if found := choose(p.many[r.Path[:end]], r); found != nil {
			return found
		}
		end = strings.LastIndexByte(r.Path[:end], '/')
	}
	return nil
}

// HasPrefix reports whether a clean path is prefix or goes on below it.
func HasPrefix(path, prefix string) bool {
	return strings.HasPrefix(path, prefix) && (len(path) == len(prefix) || path[len(prefix)] == '/')
}

func (p *byPath[A]) get(path string) []Target[A] {
	if len(path) > p.longest {
		return nil
	}
	if p.many != nil {
		return p.many[path]
	}
	for i := range p.few {
		if p.few[i].path == path {
			return p.few[i].targets
		}
	}
	return nil
}

func choose[A any](targets []Target[A], r *Request) *Target[A] {
	for i := range targets {
		if t := &targets[i]; t.unconditional || t.Match.conditions(r) {
			return t
		}
	}
	return nil
}
