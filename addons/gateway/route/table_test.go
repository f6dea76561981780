package route

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func name(r *Route, rule *Rule) string { return r.Name + " " + rule.Name }

func rule(name string, matches ...Match) Rule { return Rule{Name: name, Matches: matches} }

func TestPrecedence(t *testing.T) {
	old, young := time.Unix(1, 0), time.Unix(2, 0)
	table := Compile([]*Route{
		{Name: "young", Created: young, Hosts: []string{"a.example.com"}, Rules: []Rule{
			rule("prefix", Match{Path: "/p"}),
			rule("long", Match{Path: "/p/q/"}),
			rule("exact", Match{Path: "/p/q", PathType: PathExact}),
			rule("regexp", Match{PathType: PathRegexp, Pattern: regexp.MustCompile(`/r/[0-9]+`)}),
			rule("regexp2", Match{PathType: PathRegexp, Pattern: regexp.MustCompile(`/r/[0-9]+/(.*)`)}),
			rule("r", Match{Path: "/r"}),
			rule("method", Match{Path: "/p", Method: "POST"}),
			rule("header", Match{Path: "/p", Headers: []Value{{Name: "x-a", Exact: "1"}}}),
			rule("two headers", Match{Path: "/p", Headers: []Value{{Name: "X-A", Exact: "1"}, {Name: "X-B", Pattern: regexp.MustCompile("a|ab")}}}),
			rule("query", Match{Path: "/p", Query: []Value{{Name: "q", Exact: "a b"}}}),
			rule("cookie", Match{Path: "/c", Cookies: []Value{{Name: "c", Exact: "v"}}}),
			rule("source", Match{Path: "/s", Sources: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}),
			rule("grpc", Match{Path: "/g", GRPC: true}),
		}},
		{Name: "old", Created: old, Hosts: []string{"a.example.com"}, Rules: []Rule{rule("prefix", Match{Path: "/p"})}},
		{Name: "wild", Hosts: []string{"*.example.com"}, Rules: []Rule{rule("all")}},
		{Name: "single", SingleLabel: true, Hosts: []string{"*.single.com"}, Rules: []Rule{rule("one", Match{Path: "/one"})}},
		{Name: "wilder", Hosts: []string{"*.com"}, Rules: []Rule{rule("all", Match{Path: "/x"})}},
	}, name)
	for _, c := range []struct {
		host, method, path, query, header, want string
	}{
		{"a.example.com", "GET", "/p", "", "", "old prefix"},
		{"a.example.com", "GET", "/p/x", "", "", "old prefix"},
		{"a.example.com", "GET", "/px", "", "", "wild all"},
		{"a.example.com", "GET", "/p/q", "", "", "young exact"},
		{"a.example.com", "GET", "/p/q/", "", "", "young long"},
		{"a.example.com", "GET", "/p/q/r", "", "", "young long"},
		{"a.example.com", "POST", "/p", "", "X-A: 1", "young method"},
		{"a.example.com", "GET", "/p", "q=a+b", "X-A: 1", "young header"},
		{"a.example.com", "GET", "/p", "", "X-A: 1\nX-B: ab", "young two headers"},
		{"a.example.com", "GET", "/p", "", "X-A: 1\nX-B: abc", "young header"},
		{"a.example.com", "GET", "/p", "q=a+b", "", "young query"},
		{"a.example.com", "GET", "/p", "q=c&q=a+b", "", "old prefix"},
		{"a.example.com", "GET", "/r/1", "", "", "young regexp"},
		{"a.example.com", "GET", "/r/1/x", "", "", "young regexp2"},
		{"a.example.com", "GET", "/r/x/r/1", "", "", "young r"},
		{"a.example.com", "GET", "/c", "", "Cookie: b=1; c=v", "young cookie"},
		{"a.example.com", "GET", "/c", "", "Cookie: b=1; cc=v", "wild all"},
		{"a.example.com", "GET", "/s", "", "", "young source"},
		{"a.example.com", "POST", "/g/m", "", "Content-Type: application/grpc+proto", "young grpc"},
		{"a.example.com", "POST", "/g/m", "", "Content-Type: text/plain", "wild all"},
		{"a.b.example.com", "GET", "/", "", "", "wild all"},
		{"example.com", "GET", "/x", "", "", "wilder all"},
		{"example.com", "GET", "/y", "", "", ""},
		{"a.single.com", "GET", "/one", "", "", "single one"},
		{"a.b.single.com", "GET", "/one", "", "", ""},
		{"a.single.com", "GET", "/x", "", "", "wilder all"},
		{"", "GET", "/", "", "", ""},
		{"com", "GET", "/", "", "", ""},
	} {
		r := &Request{Host: c.host, Path: c.path, Method: c.method, RawQuery: c.query, Header: http.Header{}, Source: netip.MustParseAddr("10.1.2.3")}
		for line := range strings.Lines(c.header) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			r.Header.Add(key, value)
		}
		got := ""
		if target := table.Match(r); target != nil {
			got = target.Action
		}
		if got != c.want {
			t.Errorf("%s %s%s?%s %q: %q, want %q", c.method, c.host, c.path, c.query, c.header, got, c.want)
		}
	}
}

// A candidate is a match that covers a request, as the naive evaluator sees it.
type candidate struct {
	host, kind, path int
	t                Target[string]
}

// naive looks at every match of every route.
func naive(routes []*Route, r *Request) string {
	var all []candidate
	for _, rt := range routes {
		hosts := rt.Hosts
		if len(hosts) == 0 {
			hosts = []string{""}
		}
		for _, h := range hosts {
			weight := 0
			if suffix, wild := strings.CutPrefix(h, "*"); wild {
				front, ok := strings.CutSuffix(r.Host, suffix)
				if !ok || front == "" || rt.SingleLabel && strings.Contains(front, ".") {
					continue
				}
				weight = len(suffix)
			} else if h == r.Host {
				weight = 1000
			} else if h != "" {
				continue
			}
			for j := range rt.Rules {
				rule := &rt.Rules[j]
				matches := rule.Matches
				if len(matches) == 0 {
					matches = []Match{{}}
				}
				for k := range matches {
					m := &matches[k]
					c := candidate{host: weight, t: Target[string]{Route: rt, Rule: rule, Match: m, Action: name(rt, rule), rule: j, match: k}}
					if c.covers(r) && m.conditions(r) {
						all = append(all, c)
					}
				}
			}
		}
	}
	if len(all) == 0 {
		return ""
	}
	return slices.MinFunc(all, func(x, y candidate) int {
		return cmp.Or(cmp.Compare(y.host, x.host), cmp.Compare(y.kind, x.kind), cmp.Compare(y.path, x.path), precedence(x.t, y.t))
	}).t.Action
}

func (c *candidate) covers(r *Request) bool {
	m := c.t.Match
	switch m.PathType {
	case PathExact:
		c.kind = 3
		return r.Path == m.Path
	case PathRegexp:
		c.kind, c.path = 2, len(m.Pattern.String())
		return regexp.MustCompile("^(?:" + m.Pattern.String() + ")").MatchString(r.Path)
	}
	prefix := strings.TrimSuffix(m.Path, "/")
	c.kind, c.path = 1, len(prefix)
	return r.Path == prefix || strings.HasPrefix(r.Path, prefix+"/")
}

// TestRandom compares the table with the naive evaluator on random routes.
func TestRandom(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		pick := func(of ...string) string { return of[random.IntN(len(of))] }
		host := func() string { return pick("a", "b", "c.a") + "." + pick("x.com", "y.com", "com") }
		path := func() string {
			p := ""
			for range random.IntN(4) {
				p += "/" + pick("a", "b", "ab", "c", "d", "e")
			}
			return p + pick("/", "")
		}
		var routes []*Route
		for i := range random.IntN(12) {
			r := &Route{Name: fmt.Sprint("r", i), Created: time.Unix(int64(random.IntN(3)), 0), SingleLabel: random.IntN(2) == 0}
			for range random.IntN(3) {
				h := host()
				if random.IntN(2) == 0 {
					h = "*." + h
				}
				if !slices.Contains(r.Hosts, h) {
					r.Hosts = append(r.Hosts, h)
				}
			}
			for j := range random.IntN(6) {
				rule := Rule{Name: fmt.Sprint(j)}
				for range random.IntN(3) {
					m := Match{Path: cmp.Or(path(), "/"), PathType: PathType(pick("", "Prefix", "Exact", "Regexp")), Method: pick("", "", "GET", "POST")}
					if m.PathType == PathRegexp {
						m.Pattern = regexp.MustCompile(pick("/a", "/[ab]+", "/a/.*", "a", "/(a|b)/c", "(?i)/A"))
					}
					for range random.IntN(3) {
						m.Headers = append(m.Headers, Value{Name: pick("X", "Y"), Exact: pick("1", "2")})
					}
					if random.IntN(3) == 0 {
						m.Query = append(m.Query, Value{Name: "q", Present: true})
					}
					if random.IntN(3) == 0 {
						m.Sources = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
					}
					rule.Matches = append(rule.Matches, m)
				}
				r.Rules = append(r.Rules, rule)
			}
			routes = append(routes, r)
		}
		table := Compile(routes, name)
		for range seed % 4 { // a part of them are others, and some of those that stay are made anew
			before := table
			routes = slices.DeleteFunc(slices.Clone(routes), func(*Route) bool { return random.IntN(4) == 0 })
			for i := range routes {
				if random.IntN(4) == 0 {
					changed := *routes[i]
					changed.Rules = slices.Clone(changed.Rules)
					random.Shuffle(len(changed.Rules), func(a, b int) {
						changed.Rules[a], changed.Rules[b] = changed.Rules[b], changed.Rules[a]
					})
					routes[i] = &changed
				}
			}
			if random.IntN(2) == 0 {
				random.Shuffle(len(routes), func(a, b int) { routes[a], routes[b] = routes[b], routes[a] })
			}
			var keep func(*Target[string]) bool
			if random.IntN(2) == 0 {
				keep = func(*Target[string]) bool { return random.IntN(8) > 0 }
			}
			table = before.Next(routes, name, keep)
		}
		for range 200 {
			r := &Request{Host: host(), Path: cmp.Or(path(), "/"), Method: pick("GET", "POST"), RawQuery: pick("", "q=1"),
				Header: http.Header{"X": {pick("1", "2")}, "Y": {pick("1", "2")}}, Source: netip.MustParseAddr(pick("10.0.0.1", "::1"))}
			got := ""
			if target := table.Match(r); target != nil {
				got = target.Action
			}
			if want := naive(routes, r); got != want {
				t.Fatalf("seed %d: %+v goes to %q, want %q, of %+v", seed, r, got, want, routes)
			}
		}
	}
}

func TestFind(t *testing.T) {
	var h Hosts[string]
	for _, n := range []string{"a.com", "*.a.com", "*.com"} {
		h.Set(n, false, n)
	}
	for host, want := range map[string]string{"a.com": "a.com", "b.a.com": "*.a.com", "c.b.a.com": "*.a.com", "b.com": "*.com", "a.org": "", "": ""} {
		if got, ok := h.Find(host); got != want || ok != (want != "") {
			t.Errorf("%s: %q, want %q", host, got, want)
		}
	}
	h.Set("", false, "all")
	if got, _ := h.Find("a.org"); got != "all" {
		t.Errorf("a.org: %q", got)
	}
}

func TestClean(t *testing.T) {
	for raw, want := range map[string]string{
		"/":              "/",
		"/a/b":           "/a/b",
		"//a///b/":       "/a/b/",
		"/a/./b/../c":    "/a/c",
		"/a/%2e%2E/b":    "/b",
		"/../../a":       "/a",
		"/a/..":          "/",
		"/a/.":           "/a/",
		"/a%2fb":         "/a%2Fb",
		"/%61%7e":        "/a~",
		"/é":             "/%C3%A9",
		"/a\\b":          "/a%5Cb",
		"/a b":           "",
		"/a%":            "",
		"/a%0":           "",
		"/a%zz":          "",
		"/a%00":          "",
		"/a\x00":         "",
		"":               "",
		"a":              "",
		"/%252e%252e/":   "/%252e%252e/",
		"/.a/..b/...":    "/.a/..b/...",
		"/a;x=1,2/$&+'!": "/a;x=1,2/$&+'!",
	} {
		got, ok := CleanPath(raw)
		if got != want || ok != (want != "") {
			t.Errorf("%q: %q %v, want %q", raw, got, ok, want)
		}
	}
	for raw, want := range map[string]string{
		"A.Example.com:80": "a.example.com", "a.": "a", "[::1]:80": "::1", "10.0.0.1:1": "10.0.0.1", "": "",
		"a b": "-", "a/b": "-", "a@b": "-", "[::1": "-", "[1.2.3.4]": "-", ".a": "-", "a..b": "-", "a:b": "-", ":80": "-", "[::1]x": "-", "a:123456": "-", "[fe80::1%25a]": "-",
	} {
		if got, ok := CleanHost(raw); ok != (want != "-") || ok && got != want {
			t.Errorf("%q: %q %v, want %q", raw, got, ok, want)
		}
	}
	if got := EncodePath("caf é/100%"); got != "/caf%20%C3%A9/100%25" {
		t.Errorf("encoded: %s", got)
	}
}

// FuzzClean: what is clean stays as it is, names the same path as before to who
// decodes it, and has no segments that a backend would resolve.
func FuzzClean(f *testing.F) {
	for _, s := range []string{"/a/../b", "/%2e%2e/%2f", "//a", "/a%5c..", "/é", "a.com:80", "[::1]:80"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if host, ok := CleanHost(s); ok {
			if again, ok := CleanHost(host); !strings.Contains(host, ":") && (!ok || again != host) {
				t.Errorf("host %q became %q and then %q", s, host, again)
			}
		}
		path, ok := CleanPath(s)
		if !ok {
			return
		}
		if again, ok := CleanPath(path); !ok || again != path {
			t.Errorf("path %q became %q and then %q", s, path, again)
		}
		u, err := url.ParseRequestURI(path)
		if err != nil || u.EscapedPath() != path && !strings.ContainsAny(path, "!'()*") {
			t.Errorf("path %q became %q, which net/url reads as %v, %v", s, path, u, err)
		}
		for segment := range strings.SplitSeq(path[1:], "/") {
			if plain, _ := url.PathUnescape(segment); plain == "." || plain == ".." {
				t.Errorf("path %q became %q", s, path)
			}
		}
		if strings.Contains(path, "//") {
			t.Errorf("path %q became %q", s, path)
		}
	})
}

// manyRoutes is a cluster's worth of Ingresses: hosts with a few paths each.
func manyRoutes(n int) []*Route {
	routes := make([]*Route, n)
	for i := range routes {
		routes[i] = &Route{Name: fmt.Sprint("Ingress default/", i), Hosts: []string{fmt.Sprintf("host-%d.example.com", i/4)}, Rules: []Rule{
			{Matches: []Match{{Path: fmt.Sprintf("/path-%d", i%4)}}}, {Matches: []Match{{Path: "/exact", PathType: PathExact}}},
		}}
	}
	return routes
}

func BenchmarkCompile5000(b *testing.B) {
	routes := manyRoutes(5000)
	b.ReportAllocs()
	for b.Loop() {
		Compile(routes, func(*Route, *Rule) int { return 1 })
	}
}

func BenchmarkMatch(b *testing.B) {
	table := Compile(manyRoutes(5000), func(*Route, *Rule) int { return 1 })
	r := &Request{Host: "host-77.example.com", Path: "/path-2/a/b/c", Method: "GET", Header: http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		if table.Match(r) == nil {
			b.Fatal("no match")
		}
	}
}

// TestMatchAllocates: the hot path makes no garbage.
func TestMatchAllocates(t *testing.T) {
	table := Compile(append(manyRoutes(50), &Route{Hosts: []string{"*.example.com"}, Rules: []Rule{
		rule("", Match{Headers: []Value{{Name: "X", Exact: "1"}}, Query: []Value{{Name: "q", Exact: "1"}}})}}), name)
	r := &Request{Host: "a.b.example.com", Path: "/path-2/a/b/c", Method: "GET", RawQuery: "a=b&q=1", Header: http.Header{"X": {"1"}}}
	if n := testing.AllocsPerRun(100, func() {
		if table.Match(r) == nil {
			t.Fatal("no match")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkNext5000 is what one route of 5,000 that changes costs.
func BenchmarkNext5000(b *testing.B) {
	routes := manyRoutes(5000)
	action := func(*Route, *Rule) int { return 1 }
	table := Compile(routes, action)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i += 37
		routes = slices.Clone(routes)
		changed := *routes[i%len(routes)]
		routes[i%len(routes)] = &changed
		table = table.Next(routes, action, nil)
	}
}
