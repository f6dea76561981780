package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A bar is one line of a table that markdown has written.
type bar struct {
	name, ours, theirs string
	times, goal        float64 // goal is 0 where there is none
}

// bars are the lines of the first such table in a page that have a ratio, and the
// name of the side that knarr is compared with.
func bars(page string) (all []bar, other string, err error) {
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case len(cells) != 7 && other != "":
			return all, other, nil
		case len(cells) != 7:
		case cells[2] == "knarr" && strings.HasPrefix(cells[4], "times better"):
			other = cells[3]
		case other != "" && cells[4] != "" && !strings.HasPrefix(cells[1], "---"):
			b := bar{name: cells[1], ours: without(cells[2]), theirs: without(cells[3])}
			if b.times, err = ratio(cells[4]); err == nil && cells[5] != "" {
				b.goal, err = ratio(cells[5])
			}
			if err != nil {
				return nil, "", fmt.Errorf("%s: %w", b.name, err)
			}
			all = append(all, b)
		}
	}
	if len(all) == 0 {
		return nil, "", errors.New("there is no table of figures")
	}
	return all, other, nil
}

// without is a figure without its spread.
func without(figure string) string {
	figure, _, _ = strings.Cut(figure, " ± ")
	return figure
}

func ratio(s string) (float64, error) {
	number, _, found := strings.Cut(s, "×")
	if !found {
		return 0, fmt.Errorf("%q is no ratio", s)
	}
	return strconv.ParseFloat(number, 64)
}

// The chart's measures, in its own units: one is a pixel where the page is as wide
// as the chart. Bars are as long as the logarithm of how many times better.
const (
	chartWidth = 960
	barX       = 408
	barWidth   = 330 // of the last of gridTimes
	rowHeight  = 23
	timesWidth = 48 // of a ratio with the space around it
	rowsY      = 96
)

// gridTimes are the ratios with a line of the grid.
var gridTimes = []float64{1, 2, 5, 10, 20, 50}

// chartStyle is readable on light and on dark pages: the chart brings its own ground.
const chartStyle = `
.ground{fill:#ffffff;stroke:#d0d7de}.bar{fill:#54aeff}.goal{stroke:#1f2328;stroke-width:2}.grid{stroke:#d0d7de}
text{font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;font-size:12px;fill:#1f2328}
.title{font-size:16px;font-weight:600}.note{fill:#57606a}.end{text-anchor:end}.middle{text-anchor:middle}.times{font-weight:600}
@media (prefers-color-scheme:dark){.ground{fill:#0d1117;stroke:#30363d}.bar{fill:#1f6feb}.goal{stroke:#e6edf3}.grid{stroke:#30363d}
text{fill:#e6edf3}.note{fill:#9198a1}}
`

// chart draws the first table of figures of a page, a bar for each ratio.
func chart(page string) ([]byte, error) {
	all, other, err := bars(page)
	if err != nil {
		return nil, err
	}
	height := rowsY + len(all)*rowHeight + 16
	c := &bytes.Buffer{}
	text := func(class string, x, y int, s string) {
		fmt.Fprintf(c, `<text class="%s" x="%d" y="%d">`, class, x, y)
		_ = xml.EscapeText(c, []byte(s)) // a buffer takes all
		c.WriteString("</text>\n")
	}
	fmt.Fprintf(c, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-labelledby="t">`+"\n", chartWidth, height, chartWidth, height)
	fmt.Fprintf(c, "<title id=\"t\">How many times better knarr is than %s</title>\n<style>%s</style>\n", other, chartStyle)
	fmt.Fprintf(c, `<rect class="ground" x="1" y="1" width="%d" height="%d" rx="6"/>`+"\n", chartWidth-2, height-2)
	text("title", 24, 32, "How many times better than "+other)
	text("note", 24, 54, "Median of the rounds, each knarr's figure and then the other's, on one machine with one client. The scale is logarithmic.")
	text("note end", chartWidth-24, 32, "the upright mark is the goal")
	for _, t := range gridTimes {
		x := barX + barLength(t)
		fmt.Fprintf(c, `<line class="grid" x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n", x, rowsY-8, x, height-12)
		text("note middle", x, rowsY-14, fmt.Sprintf("%g×", t))
	}
	for i, b := range all {
		y := rowsY + i*rowHeight
		text("end", barX-10, y+13, b.name)
		fmt.Fprintf(c, `<rect class="bar" x="%d" y="%d" width="%d" height="%d" rx="2"/>`+"\n", barX, y+1, max(2, barLength(b.times)), rowHeight-7)
		if b.goal > 0 {
			x := barX + barLength(b.goal)
			fmt.Fprintf(c, `<line class="goal" x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n", x, y-1, x, y+rowHeight-4)
		}
		end := barLength(b.times)
		if goal := barLength(b.goal); goal < end+timesWidth {
			end = max(end, goal)
		}
		text("times", barX+end+7, y+13, fmt.Sprintf("%.*f×", digitsOf(b.times), b.times))
		text("note end", chartWidth-24, y+13, b.ours+" : "+b.theirs)
	}
	c.WriteString("</svg>\n")
	return c.Bytes(), nil
}

// barLength is how long the bar of a ratio is; none where it is not better.
func barLength(times float64) int {
	if times <= 1 {
		return 0
	}
	last := gridTimes[len(gridTimes)-1]
	return int(math.Round(barWidth * math.Log(min(times, last)) / math.Log(last)))
}

// writeChart draws the table of a Markdown file into an SVG beside it.
func writeChart(file string) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	svg, err := chart(string(page))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return os.WriteFile(strings.TrimSuffix(file, filepath.Ext(file))+".svg", svg, 0o644)
}
