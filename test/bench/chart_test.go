package main

import (
	"bytes"
	"encoding/xml"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

// TestChart: what is measured is drawn, line by line.
func TestChart(t *testing.T) {
	b := bench{name: "one", lines: []line{{name: "get <pod>", unit: "/s", high: true, target: 4}, {name: "start", unit: "ms"}, {name: "not measured", unit: "ms"}}}
	r := newResults()
	for round := range 3 {
		r.put(b, "get <pod>", knarr, round, 500)
		r.put(b, "get <pod>", upstream, round, 100)
		r.put(b, "start", knarr, round, 300)
		r.put(b, "start", upstream, round, 200)
	}
	page := r.markdown([]bench{b}, "upstream v1.36.3", 3, time.Minute)
	all, other, err := bars(page)
	if err != nil || other != "upstream v1.36.3" || len(all) != 2 {
		t.Fatalf("found %+v beside %q: %v\n%s", all, other, err, page)
	}
	if got, want := all[0], (bar{"get <pod>", "500 /s", "100 /s", 5, 4}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, want := all[1], (bar{"start", "300 ms", "200 ms", 0.67, 0}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	svg, err := chart(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"get &lt;pod&gt;", "500 /s : 100 /s", ">5.0×<", ">0.67×<", "than upstream v1.36.3"} {
		if !bytes.Contains(svg, []byte(want)) {
			t.Errorf("no %s in the chart:\n%s", want, svg)
		}
	}
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestChartOfNothing: a page without figures, or with others than ours, says so.
func TestChartOfNothing(t *testing.T) {
	for page, want := range map[string]string{
		"# Nothing\n": "no table",
		"| | knarr | it | times better | goal |\n|---|---|---|---|---|\n| a | 1 | 2 | twice | |\n": "no ratio",
	} {
		if _, err := chart(page); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", page, err, want)
		}
	}
}

// TestBarLength: a bar begins at once as good and ends with the grid.
func TestBarLength(t *testing.T) {
	last := gridTimes[len(gridTimes)-1]
	if barLength(0.5) != 0 || barLength(1) != 0 || barLength(last) != barWidth || barLength(2*last) != barWidth {
		t.Errorf("lengths %d %d %d %d", barLength(0.5), barLength(1), barLength(last), barLength(2*last))
	}
}

// TestPublishedChart: docs/benchmarks.svg shows the figures of docs/benchmarks.md.
func TestPublishedChart(t *testing.T) {
	page, err := os.ReadFile("../../docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	want, err := chart(string(page))
	if err != nil {
		t.Fatal(err)
	}
	if have, err := os.ReadFile("../../docs/benchmarks.svg"); err != nil || !bytes.Equal(have, want) {
		t.Errorf("docs/benchmarks.svg is older than docs/benchmarks.md (%v): make pictures", err)
	}
}
