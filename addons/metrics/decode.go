package metrics

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A kubelet's answer is its node's word, so it is bounded before it is kept.
const (
	maxAnswer     = 8 << 20 // bytes of an answer
	maxLine       = 4 << 10 // bytes of a line
	maxContainers = 5000    // of a node
	maxName       = 253     // bytes of a name
)

// A point is what was used by the time of one measurement.
type point struct {
	start  int64  // when the container started, Unix nanoseconds; 0 when not told
	at     int64  // when it was measured, Unix nanoseconds
	cpu    uint64 // since the start, core nanoseconds
	memory uint64 // working set, bytes
}

// whole says that both have been measured: as metrics-server does, it takes a
// zero for something that was not.
func (p point) whole() bool { return p.at != 0 && p.cpu != 0 && p.memory != 0 }

// A batch is one answer of a kubelet.
type batch struct {
	node point
	pods map[types.NamespacedName]map[string]point // by container
}

// decode reads the answer of /metrics/resource. now is the time of samples
// without one.
func decode(r io.Reader, now time.Time) (*batch, error) {
	limited := &io.LimitedReader{R: r, N: maxAnswer + 1}
	lines := bufio.NewScanner(limited)
	lines.Buffer(nil, maxLine)
	b := &batch{pods: map[types.NamespacedName]map[string]point{}}
	containers := 0
	for lines.Scan() {
		s, ok, err := parseSample(lines.Text(), now)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		if s.container == "" {
			s.metric.set(&b.node, s)
			continue
		}
		of := b.pods[s.pod]
		if of == nil { // what is kept does not keep its line
			of = map[string]point{}
			b.pods[types.NamespacedName{Namespace: strings.Clone(s.pod.Namespace), Name: strings.Clone(s.pod.Name)}] = of
		}
		p, known := of[s.container]
		if !known {
			s.container = strings.Clone(s.container)
			containers++
		}
		if containers > maxContainers {
			return nil, fmt.Errorf("more than %d containers", maxContainers)
		}
		s.metric.set(&p, s)
		of[s.container] = p
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	if limited.N <= 0 {
		return nil, fmt.Errorf("more than %d bytes of metrics", maxAnswer)
	}
	b.leaveOut()
	return b, nil
}

// leaveOut leaves out pods of which not all containers have been measured, as
// metrics-server does: half a pod would look like one that uses little.
func (b *batch) leaveOut() {
	for pod, containers := range b.pods {
		for _, p := range containers {
			if !p.whole() {
				delete(b.pods, pod)
				break
			}
		}
	}
}

// A metric is one of those that are kept.
type metric struct {
	ofNode bool
	set    func(*point, sample)
}

func setCPU(p *point, s sample)    { p.cpu, p.at = uint64(math.Round(s.value*1e9)), s.at }
func setMemory(p *point, s sample) { p.memory, p.at = uint64(s.value), max(p.at, s.at) }
func setStart(p *point, s sample)  { p.start = int64(s.value * 1e9) }

var kept = map[string]metric{
	"node_cpu_usage_seconds_total":       {true, setCPU},
	"node_memory_working_set_bytes":      {true, setMemory},
	"container_cpu_usage_seconds_total":  {false, setCPU},
	"container_memory_working_set_bytes": {false, setMemory},
	"container_start_time_seconds":       {false, setStart},
}

// largest is the largest value that is taken: of seconds, what fits into
// nanoseconds; of bytes, more than any machine has.
const largest = math.MaxInt64 / 1e9

// A sample is one line.
type sample struct {
	metric    metric
	pod       types.NamespacedName
	container string // empty for the node itself
	value     float64
	at        int64
}

var errSyntax = errors.New("not the text format of metrics")

// parseSample reads a line; ok is false for one that is not kept, and for a
// value that cannot be. Pure.
func parseSample(line string, now time.Time) (s sample, ok bool, err error) {
	end := strings.IndexAny(line, "{ ")
	if end <= 0 || line[0] == '#' {
		return s, false, nil
	}
	if s.metric, ok = kept[line[:end]]; !ok {
		return s, false, nil
	}
	rest := line[end:]
	if rest[0] == '{' {
		if rest, err = s.labels(rest[1:]); err != nil {
			return s, false, err
		}
	}
	if s.metric.ofNode != (s.container == "") || !s.metric.ofNode && (s.pod.Name == "" || s.pod.Namespace == "") {
		return s, false, nil
	}
	words := strings.Fields(rest)
	if len(words) == 0 || len(words) > 2 {
		return s, false, errSyntax
	}
	if s.value, err = strconv.ParseFloat(words[0], 64); err != nil {
		return s, false, errSyntax
	}
	s.at = now.UnixNano()
	if len(words) == 2 {
		ms, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil || ms <= 0 || ms > math.MaxInt64/1_000_000 {
			return s, false, errSyntax
		}
		s.at = ms * 1e6
	}
	limit := float64(largest)
	if strings.HasSuffix(line[:end], "_bytes") {
		limit = 1 << 60
	}
	return s, s.value >= 0 && s.value <= limit, nil // never NaN
}

// labels reads label pairs up to the brace, and returns what follows.
func (s *sample) labels(in string) (rest string, err error) {
	for {
		in = strings.TrimLeft(in, ", ")
		if after, found := strings.CutPrefix(in, "}"); found {
			return after, nil
		}
		name, after, found := strings.Cut(in, "=")
		if !found {
			return "", errSyntax
		}
		quoted, err := strconv.QuotedPrefix(after)
		if err != nil || quoted[0] != '"' {
			return "", errSyntax
		}
		value, err := strconv.Unquote(quoted)
		if err != nil || len(value) > maxName {
			return "", errSyntax
		}
		switch in = after[len(quoted):]; name {
		case "namespace":
			s.pod.Namespace = value
		case "pod":
			s.pod.Name = value
		case "container":
			s.container = value
		}
	}
}
