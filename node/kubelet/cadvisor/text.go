package cadvisor

import (
	"bufio"
	"compress/gzip"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// answerTime is how long a client may take to receive an answer.
const answerTime = 30 * time.Second

// ServeHTTP answers in the text format of Prometheus, which is written as it is
// sent: with thousands of pods no answer is ever held in memory as a whole.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case c.writers <- struct{}{}:
		defer func() { <-c.writers }()
	default:
		http.Error(w, "too many scrapes at once", http.StatusServiceUnavailable)
		return
	}
	samples := c.measure(r.Context())
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTime))
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	var to io.Writer = w
	if acceptsGzip(r) {
		w.Header().Set("Content-Encoding", "gzip")
		z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
		defer z.Close()
		to = z
	}
	b := bufio.NewWriterSize(to, 64<<10)
	c.write(b, samples)
	_ = b.Flush() // who asked may have gone
}

func acceptsGzip(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, quality, _ := strings.Cut(strings.TrimSpace(part), ";")
		if name == "gzip" {
			return strings.TrimSpace(quality) != "q=0"
		}
	}
	return false
}

// write is the whole answer.
func (c *Collector) write(w *bufio.Writer, samples []sample) {
	m := c.cfg.Machine
	head(w, "cadvisor_version_info", gauge, "The node's system")
	line(w, "cadvisor_version_info", label("cadvisorRevision", "")+","+label("cadvisorVersion", "")+","+label("dockerVersion", "")+","+
		label("kernelVersion", m.Kernel)+","+label("osVersion", m.OS), "", 1, 0)
	for i := range families {
		writeFamily(w, &families[i], samples)
	}
	head(w, "container_scrape_error", gauge, "1 if nothing could be measured")
	failed := 0.0
	if len(samples) == 0 {
		failed = 1
	}
	line(w, "container_scrape_error", "", "", failed, 0)
	labels := label("boot_id", m.BootID) + "," + label("machine_id", m.ID) + "," + label("system_uuid", m.UUID)
	for _, f := range machineFamilies {
		head(w, f.name, gauge, f.help)
		line(w, f.name, labels, "", f.value(c), 0)
	}
	head(w, "machine_scrape_error", gauge, "1 if the machine could not be read")
	line(w, "machine_scrape_error", "", "", 0, 0)
}

// writeFamily writes a family, unless no group has it.
func writeFamily(w *bufio.Writer, f *family, samples []sample) {
	open := false
	for i := range samples {
		s := &samples[i]
		at := s.at.UnixMilli()
		if f.timeless {
			at = 0
		}
		f.each(s, func(v float64, labels string) {
			if !open {
				open = true
				head(w, f.name, f.kind, f.help)
			}
			line(w, f.name, s.labels, labels, v, at)
		})
	}
}

func head(w *bufio.Writer, name, kind, help string) {
	for _, s := range []string{"# HELP ", name, " ", help, "\n# TYPE ", name, " ", kind, "\n"} {
		_, _ = w.WriteString(s)
	}
}

// line writes one value; at 0 means no time.
func line(w *bufio.Writer, name, labels, more string, v float64, at int64) {
	_, _ = w.WriteString(name)
	if labels != "" {
		_ = w.WriteByte('{')
		_, _ = w.WriteString(labels)
		if more != "" {
			_ = w.WriteByte(',')
			_, _ = w.WriteString(more)
		}
		_ = w.WriteByte('}')
	}
	_ = w.WriteByte(' ')
	_, _ = w.Write(strconv.AppendFloat(w.AvailableBuffer(), v, 'g', -1, 64))
	if at != 0 {
		_ = w.WriteByte(' ')
		_, _ = w.Write(strconv.AppendInt(w.AvailableBuffer(), at, 10))
	}
	_ = w.WriteByte('\n')
}

// baseLabels are the six labels that every series of a group has.
func baseLabels(g Group) string {
	return label("container", g.Container) + "," + label("id", g.Path) + "," + label("image", g.Image) + "," +
		label("name", g.Name) + "," + label("namespace", g.Namespace) + "," + label("pod", g.Pod)
}

var escaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// maxLabel bounds a value that a pod or a runtime chooses.
const maxLabel = 1024

// label is the text of one label, whatever its value is made of.
func label(name, value string) string {
	return name + `="` + escaper.Replace(strings.ToValidUTF8(value[:min(len(value), maxLabel)], "\uFFFD")) + `"`
}
