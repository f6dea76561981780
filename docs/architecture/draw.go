package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
)

// The picture's measures, in its own units: one is a pixel where the page is as
// wide as the picture.
const (
	width   = 960
	margin  = 32
	apiY    = 104 // the API server
	apiH    = 72
	etcdX   = 752
	panelY  = 228
	rowH    = 58 // of a component, with the space below it
	boxH    = 48
	serverX = margin
	serverW = 292
	nodeX   = 348
	nodeW   = width - margin - nodeX
	boxIn   = 44 // how far a component's box is within its panel
	boxW    = 232
)

// style is readable on light and on dark pages: the picture brings its own ground.
const style = `
.ground{fill:#ffffff;stroke:#d0d7de}.panel{fill:#f6f8fa;stroke:#d0d7de}.box{fill:#ffffff;stroke:#8c959f}.core{fill:#ddf4ff;stroke:#0969da}
text{font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}
.name{font-size:15px;font-weight:600}.does{font-size:13px;fill:#424a53}.where{font-size:14px;font-weight:600;fill:#424a53}
.line{stroke:#57606a;stroke-width:1.5;fill:none}.tip{fill:#57606a}.back{stroke-dasharray:5 4}
@media (prefers-color-scheme:dark){.ground{fill:#0d1117;stroke:#30363d}.panel{fill:#161b22;stroke:#30363d}.box{fill:#0d1117;stroke:#6e7681}.core{fill:#0c2d6b;stroke:#58a6ff}
text{fill:#e6edf3}.does,.where{fill:#b1bac4}.line{stroke:#9198a1}.tip{fill:#9198a1}}
`

// A canvas is an SVG on its way. Its coordinates are whole numbers.
type canvas struct{ bytes.Buffer }

func (c *canvas) rect(class string, x, y, w, h int) {
	fmt.Fprintf(c, `<rect class="%s" x="%d" y="%d" width="%d" height="%d" rx="6"/>`+"\n", class, x, y, w, h)
}

func (c *canvas) text(class string, x, y int, s string) {
	fmt.Fprintf(c, `<text class="%s" x="%d" y="%d">`, class, x, y)
	_ = xml.EscapeText(c, []byte(s)) // a buffer takes all
	c.WriteString("</text>\n")
}

// line is a line along the points, x and y by turns; tipped ends in an arrow.
func (c *canvas) line(class string, tipped bool, points ...int) {
	tip := ""
	if tipped {
		tip = ` marker-end="url(#tip)"`
	}
	fmt.Fprintf(c, `<path class="line %s" d="M%d %d`, class, points[0], points[1])
	for i := 2; i < len(points); i += 2 {
		fmt.Fprintf(c, " L%d %d", points[i], points[i+1])
	}
	c.WriteString(`"` + tip + "/>\n")
}

// box is a rectangle with a name and what it does.
func (c *canvas) box(class string, x, y, w, h int, name string, does ...string) {
	c.rect(class, x, y, w, h)
	c.text("name", x+12, y+20, name)
	for i, s := range does {
		c.text("does", x+12, y+39+18*i, s)
	}
}

// draw is the picture of these components: those of each server, and those of each
// node.
func draw(servers, nodes []string) ([]byte, error) {
	rows := max(len(servers), len(nodes))
	panelH := 40 + rows*rowH + 4
	height := panelY + panelH + 80
	c := &canvas{}
	fmt.Fprintf(c, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-labelledby="t">`+"\n", width, height, width, height)
	c.WriteString("<!-- Drawn by go run ./docs/architecture from cluster/components.go and cluster/node.go. -->\n")
	c.WriteString("<title id=\"t\">Every component connects to the API server; only the API server connects to etcd.</title>\n<style>" + style + "</style>\n")
	c.WriteString(`<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>` + "\n")
	c.rect("ground", 1, 1, width-2, height-2)
	middle()(c)
	if err := c.panel("on each server", serverX, serverW, panelH, servers); err != nil {
		return nil, err
	}
	if err := c.panel("on each node", nodeX, nodeW, panelH, nodes); err != nil {
		return nil, err
	}
	kubelet(c, nodes)
	for i, s := range []string{
		"An arrow leads from who opens the connection. Each component is a user of its own to the API server.",
		"A server and its node are one process, which connects in memory; other machines run knarr agent, over TLS.",
		"Containers, their shims and the listening sockets outlive the process.",
	} {
		c.text("does", margin, height-56+20*i, s)
	}
	c.WriteString("</svg>\n")
	return c.Bytes(), nil
}

// middle is what is there without a table: clients, API server and store.
func middle() func(*canvas) {
	const apiW = 640
	return func(c *canvas) {
		c.box("box", margin, 24, apiW, boxH, "kubectl, Helm, operators, clients", "your own, or the embedded kubectl")
		c.line("", true, margin+apiW/2, 24+boxH, margin+apiW/2, apiY-2)
		c.box("core", margin, apiY, apiW, apiH, "API server", "authenticate, authorise, admit, validate, store, and let everyone watch", "reads and watches are served from memory, encoded once for all")
		c.box("core", etcdX, apiY, width-margin-etcdX, apiH, "etcd", "embedded, on disk;", "or elsewhere, or SQL")
		c.line("", true, margin+apiW, apiY+apiH/2, etcdX-2, apiY+apiH/2)
	}
}

// panel is a table of components and the trunk by which they reach the API server.
func (c *canvas) panel(title string, x, w, h int, names []string) error {
	c.rect("panel", x, panelY, w, h)
	c.text("where", x+boxIn, panelY+26, title)
	trunk := x + boxIn/2
	for i, name := range names {
		caption, ok := captions[name]
		if !ok {
			return fmt.Errorf("there is no caption for the component %s: say in docs/architecture/table.go what it does", name)
		}
		y := panelY + 40 + i*rowH
		c.box("box", x+boxIn, y, boxW, boxH, name, caption.does)
		c.line("", false, x+boxIn, y+boxH/2, trunk, y+boxH/2)
		for j, s := range caption.host {
			c.text("does", x+boxIn+boxW+40, y+boxH/2+5+20*j-10*(len(caption.host)-1), s)
		}
	}
	c.line("", true, trunk, panelY+40+(len(names)-1)*rowH+boxH/2, trunk, apiY+apiH+2)
	return nil
}

// kubelet is the one connection that the API server opens to a node.
func kubelet(c *canvas, nodes []string) {
	for i, name := range nodes {
		if name == "kubelet" {
			x, y := nodeX+boxIn+boxW, panelY+40+i*rowH+boxH/2
			c.line("back", true, x+18, apiY+apiH, x+18, y-10, x+2, y-10)
			c.text("does", x+28, panelY-12, "logs, exec, attach, port-forward")
			c.line("", true, x, y+12, x+33, y+12) // to the container runtime
		}
	}
}
