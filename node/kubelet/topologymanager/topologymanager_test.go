package topologymanager

import "testing"

func TestMerge(t *testing.T) {
	n := NodesOf
	for _, c := range []struct {
		name      string
		resources []Hints
		best      Hint // best-effort and restricted
		restrict  bool
		single    Hint
		one       bool
	}{
		{"nothing matters", nil, Hint{n(0, 1), true}, true, Hint{0, true}, true},
		{"one does not care", []Hints{nil, {{n(0), true}, {n(0, 1), false}}}, Hint{n(0), true}, true, Hint{n(0), true}, true},
		{"both on one", []Hints{{{n(0), true}, {n(1), true}}, {{n(1), true}}}, Hint{n(1), true}, true, Hint{n(1), true}, true},
		{"lower of two", []Hints{{{n(0), true}, {n(1), true}}, {{n(0), true}, {n(1), true}}}, Hint{n(0), true}, true, Hint{n(0), true}, true},
		{"apart", []Hints{{{n(0), true}}, {{n(1), true}}}, Hint{n(0, 1), false}, false, Hint{0, false}, false},
		{"needs both", []Hints{{{n(0, 1), true}}}, Hint{n(0, 1), true}, true, Hint{0, false}, false},
		{"wider than need be", []Hints{{{n(0, 1), false}}, {{n(1), true}}}, Hint{n(1), false}, false, Hint{0, false}, false},
		{"cannot be given", []Hints{{}, {{n(0), true}}}, Hint{n(0), false}, false, Hint{0, false}, false},
	} {
		for policy, want := range map[string]struct {
			best  Hint
			admit bool
		}{BestEffort: {c.best, true}, Restricted: {c.best, c.restrict}, SingleNode: {c.single, c.one}, None: {Hint{}, true}} {
			p, err := New(policy, ContainerScope, nil, []int{0, 1}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if best, admit := p.Merge(c.resources); best != want.best || admit != want.admit {
				t.Errorf("%s, %s: %+v, %v; want %+v, %v", c.name, policy, best, admit, want.best, want.admit)
			}
		}
	}
}

func TestClosest(t *testing.T) {
	d := map[int]map[int]int{0: {0: 10, 1: 30, 2: 11}, 1: {0: 30, 1: 10, 2: 30}, 2: {0: 11, 1: 30, 2: 10}}
	hints := []Hints{{{NodesOf(0, 1), true}, {NodesOf(0, 2), true}, {NodesOf(1, 2), true}}}
	for option, want := range map[string]Nodes{"true": NodesOf(0, 2), "false": NodesOf(0, 1)} {
		p, err := New(BestEffort, ContainerScope, map[string]string{"prefer-closest-numa-nodes": option}, []int{0, 1, 2}, d)
		if err != nil {
			t.Fatal(err)
		}
		if best, _ := p.Merge(hints); best.Nodes != want {
			t.Errorf("%s: %v", option, best.Nodes.IDs())
		}
	}
}

// TestManyResources: their combinations have a bound.
func TestManyResources(t *testing.T) {
	p, err := New(Restricted, PodScope, nil, []int{0, 1, 2, 3, 4, 5, 6, 7}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var hints Hints
	for _, s := range Sets(p.All) {
		hints = append(hints, Hint{s, s.Count() == 1})
	}
	var all []Hints
	for range 12 {
		all = append(all, hints)
	}
	if best, admit := p.Merge(all); !admit || best.Nodes != NodesOf(0) {
		t.Errorf("%+v, %v", best, admit)
	}
}

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		options map[string]string
		nodes   int
		want    string
	}{
		{map[string]string{"x": "1"}, 1, `unknown Topology Manager Policy option: "x"`},
		{map[string]string{"max-allowable-numa-nodes": "4"}, 1, `the minimum value of "max-allowable-numa-nodes" should not be less than 8`},
		{nil, 9, "unsupported on machines with more than 8 NUMA Nodes"},
	} {
		var nodes []int
		for i := range c.nodes {
			nodes = append(nodes, i)
		}
		if _, err := New(Restricted, PodScope, c.options, nodes, nil); err == nil || err.Error() != c.want {
			t.Errorf("%v", err)
		}
	}
}
