package metrics

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const answer = `# HELP node_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the node in core-seconds
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 100.5 1700000000123
node_memory_working_set_bytes 2.097152e+06 1700000000123
container_cpu_usage_seconds_total{container="c",namespace="n",pod="p"} 2.25 1700000000456
container_memory_working_set_bytes{container="c",namespace="n",pod="p"} 4096 1700000000456
container_start_time_seconds{container="c",namespace="n",pod="p"} 1.6999999e+09
pod_cpu_usage_seconds_total{namespace="n",pod="p"} 3 1700000000456
scrape_error 0
`

// lines are a container's two measurements.
func lines(pod, cpu, memory string) string {
	return fmt.Sprintf("container_cpu_usage_seconds_total{container=\"c\",namespace=\"n\",pod=%q} %s\ncontainer_memory_working_set_bytes{container=\"c\",namespace=\"n\",pod=%q} %s\n", pod, cpu, pod, memory)
}

func TestDecode(t *testing.T) {
	now := time.Unix(1700000100, 0)
	b, err := decode(strings.NewReader(answer), now)
	if err != nil {
		t.Fatal(err)
	}
	if want := (point{at: 1700000000123e6, cpu: 100.5e9, memory: 2 << 20}); b.node != want {
		t.Errorf("node %+v, want %+v", b.node, want)
	}
	want := point{start: 1699999900e9, at: 1700000000456e6, cpu: 2.25e9, memory: 4096}
	if got := b.pods[types.NamespacedName{Namespace: "n", Name: "p"}]["c"]; got != want || len(b.pods) != 1 {
		t.Errorf("container %+v, want %+v; %d pods", got, want, len(b.pods))
	}
}

// TestLies: what cannot be is left out with its pod, and no other with it; what
// is too much, or no metrics at all, is refused as a whole.
func TestLies(t *testing.T) {
	long := strings.Repeat("x", maxName+1)
	many := &strings.Builder{}
	for i := range maxContainers + 1 {
		many.WriteString(lines(fmt.Sprint("p", i), "1", "1"))
	}
	for name, c := range map[string]struct {
		lines, err string
		pods       int
	}{
		"negative":      {lines("bad", "-1", "1"), "", 1},
		"not a number":  {lines("bad", "NaN", "1"), "", 1},
		"infinite":      {lines("bad", "+Inf", "1"), "", 1},
		"huge time":     {lines("bad", "1e300", "1"), "", 1},
		"huge memory":   {lines("bad", "1", "1e30"), "", 1},
		"zero":          {lines("bad", "0", "1"), "", 1},
		"half":          {lines("bad", "1", "")[:70] + "\n", errSyntax.Error(), 0},
		"no pod":        {lines("", "1", "1"), "", 1},
		"a long name":   {lines(long, "1", "1"), errSyntax.Error(), 0},
		"a long line":   {strings.Repeat("x", maxLine+1), "token too long", 0},
		"a long answer": {strings.Repeat("# x\n", maxAnswer/4+1), "more than", 0},
		"many pods":     {many.String(), "more than 5000 containers", 0},
		"text":          {"container_cpu_usage_seconds_total{container=\"c\" 1\n", errSyntax.Error(), 0},
		"no value":      {"node_cpu_usage_seconds_total\t\nnode_cpu_usage_seconds_total \n", errSyntax.Error(), 0},
		"bad time":      {"node_cpu_usage_seconds_total 1 99999999999999999\n", errSyntax.Error(), 0},
		"other metrics": {"up{a=\"b\"} 1\n", "", 1},
	} {
		b, err := decode(strings.NewReader(lines("good", "1", "1")+c.lines), time.Unix(1, 0))
		if c.err == "" && (err != nil || len(b.pods) != c.pods) {
			t.Errorf("%s: %v, want %d pods of %+v", name, err, c.pods, b)
		}
		if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v, want %q", name, err, c.err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(answer)
	f.Add(lines("p", "-1", "NaN"))
	f.Add("node_cpu_usage_seconds_total{} 1 2 3\n")
	f.Fuzz(func(t *testing.T, text string) {
		b, err := decode(strings.NewReader(text), time.Unix(1, 0))
		if err != nil {
			return
		}
		for pod, containers := range b.pods {
			for name, p := range containers {
				if !p.whole() || p.memory > 1<<60 || pod.Name == "" || pod.Namespace == "" || name == "" {
					t.Errorf("%v %q is taken as %+v", pod, name, p)
				}
			}
		}
	})
}
