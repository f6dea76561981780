package attachdetach

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// a world is written as words: "multi", "pod=NAME@NODE", "other=NAME@NODE" for a
// pod of another namespace, "mounting=NODE", "attached=NODE", "attaching=NODE", "detaching=NODE",
// "stuck=NODE" for one whose attacher cannot take it, "failed=NODE", and what nodes are: "inuse=NODE", "reported=NODE", "sick=NODE",
// "out=NODE", "gone=NODE", "foreign=NODE".
func world(words string) *volume {
	v := &volume{name: "kubernetes.io/csi/d^h", driver: "d", handle: "h", pv: "pv", wanted: map[string][]*corev1.Pod{}, mounting: map[string]bool{},
		attachments: map[string]*storagev1.VolumeAttachment{}, nodes: map[string]node{}}
	is := map[string]map[string]bool{}
	pods := 0
	for word := range strings.FieldsSeq(words) {
		kind, name, _ := strings.Cut(word, "=")
		switch kind {
		case "multi":
			v.multi = true
			continue
		case "patient":
			v.patient = true
			continue
		case "pod", "other":
			pod, on, _ := strings.Cut(name, "@")
			o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: kind, CreationTimestamp: metav1.NewTime(start.Add(time.Duration(pods) * time.Second))}}
			v.wanted[on] = append(v.wanted[on], o)
			pods++
			name = on
		case "mounting":
			v.mounting[name] = true
		case "attached", "attaching", "detaching", "stuck", "failed":
			a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{UID: types.UID(name), CreationTimestamp: metav1.NewTime(start)}, Spec: storagev1.VolumeAttachmentSpec{NodeName: name}}
			a.Status.Attached = kind == "attached" || kind == "detaching" || kind == "stuck"
			if kind == "detaching" || kind == "stuck" {
				a.DeletionTimestamp = &a.CreationTimestamp
			}
			if kind == "stuck" {
				a.Status.DetachError = &storagev1.VolumeError{Time: a.CreationTimestamp, Message: "disk is busy"}
			}
			if kind == "failed" {
				a.Status.AttachError = &storagev1.VolumeError{Time: a.CreationTimestamp, Message: "no disk"}
			}
			v.attachments[name] = a
		}
		if is[name] == nil {
			is[name] = map[string]bool{}
		}
		is[name][kind] = true
	}
	for name, is := range is {
		v.nodes[name] = node{exists: !is["gone"], ready: !is["sick"] && !is["gone"], outOfService: is["out"], foreign: is["foreign"],
			inUse: is["inuse"] || is["gone"], reported: is["reported"]}
	}
	return v
}

func (d decision) String() string {
	var all []string
	for _, name := range d.attach {
		all = append(all, "attach "+name)
	}
	for _, o := range d.detach {
		s := "detach " + o.node
		if o.force != "" {
			s = "force " + o.node + " for " + o.force
		}
		all = append(all, s)
	}
	for _, name := range d.report {
		all = append(all, "report "+name)
	}
	for _, w := range d.warn {
		all = append(all, w.pod.Name+": "+w.message)
	}
	if d.again > 0 {
		all = append(all, fmt.Sprint("again ", d.again))
	}
	return strings.Join(all, ", ")
}

func TestPlan(t *testing.T) {
	for name, tt := range map[string]struct {
		world string
		after time.Duration // since the first look
		want  string
	}{
		"nothing":                             {"", 0, ""},
		"a pod has come":                      {"pod=p@a", 0, "attach a"},
		"an attacher is at work":              {"pod=p@a attaching=a", 0, "again 2m0s"},
		"attached, and the node says nothing": {"pod=p@a attached=a", 0, "report a"},
		"attached":                            {"pod=p@a attached=a reported=a inuse=a", time.Hour, ""},
		"the node says it before it is":       {"pod=p@a attaching=a reported=a", 0, "report a, again 2m0s"},
		"needed again while it is detached":   {"pod=p@a detaching=a", 0, "again 2m0s"},
		"needed again, and never detached": {"pod=p@a detaching=a", 2 * time.Minute,
			`p: AttachVolume.Attach failed for volume "pv" : volume attachment is being deleted: timed out waiting for external-attacher of d CSI driver to detach volume h`},
		"needed again, and detaching fails": {"pod=p@a stuck=a", 0, `p: AttachVolume.Attach failed for volume "pv" : volume attachment is being deleted: disk is busy`},

		"two nodes want what one may have":      {"pod=p@b pod=q@a", 0, "attach b"},
		"two nodes want what both may have":     {"multi pod=p@b pod=q@a", 0, "attach b, attach a"},
		"another node has it, for its pod":      {"pod=p@a attached=a reported=a pod=q@b", 0, `q: Multi-Attach error for volume "pv" Volume is already used by pod(s) p`},
		"another node has it, for others' pods": {"other=p@a other=o@a attached=a reported=a pod=q@b", 0, `q: Multi-Attach error for volume "pv" Volume is already used by 2 pod(s) in different namespaces`},
		"another node has it, for both":         {"pod=p@a other=o@a attached=a reported=a pod=q@b", 0, `q: Multi-Attach error for volume "pv" Volume is already used by pod(s) p and 1 pod(s) in different namespaces`},
		"another node has it still":             {"attached=a reported=a inuse=a pod=q@b", 0, `q: Multi-Attach error for volume "pv" Volume is already exclusively attached to one node and can't be attached to another`},
		"another node may be getting it":        {"pod=p@a attaching=a pod=q@b", 0, `q: Multi-Attach error for volume "pv" Volume is already used by pod(s) p, again 2m0s`},
		"another node is losing it":             {"detaching=a pod=q@b", 0, "again 2m0s"},
		"another node never loses it": {"detaching=a pod=q@b", 2 * time.Minute,
			`q: Multi-Attach error for volume "pv" ` + exclusive + `: detaching it from node "a" fails: timed out waiting for external-attacher of d CSI driver to detach volume h`},
		"another node cannot lose it":              {"stuck=a pod=q@b", 0, `q: Multi-Attach error for volume "pv" ` + exclusive + `: detaching it from node "a" fails: disk is busy`},
		"one of two other nodes cannot lose it":    {"detaching=a stuck=c pod=q@b", 0, `q: Multi-Attach error for volume "pv" ` + exclusive + `: detaching it from node "c" fails: disk is busy, again 2m0s`},
		"a node that cannot lose it matters not":   {"multi stuck=a pod=q@b", 0, "attach b"},
		"another node has what several may have":   {"multi pod=p@a attached=a reported=a pod=q@b", 0, "attach b"},
		"a node that attaches by itself has it":    {"attached=a foreign=a pod=q@b", 0, `q: Multi-Attach error for volume "pv" Volume is already exclusively attached to one node and can't be attached to another`},
		"a node that attaches by itself keeps it":  {"attached=a foreign=a", time.Hour, ""},
		"unmounted, and the node's status says so": {"attached=a reported=a", 0, "report a"},
		"unmounted, and none may mount it":         {"attached=a", 0, "detach a"},
		"never attached, and wanted no more":       {"attaching=a", 0, "detach a"},
		"mounted on a node that is well":           {"attached=a reported=a inuse=a", time.Hour, ""},

		"mounted on a node that is not":                {"attached=a reported=a inuse=a sick=a", time.Minute, "again 5m0.001s"},
		"mounted on a node that is not for too long":   {"attached=a inuse=a sick=a", maxWait + 1, "force a for timeout"},
		"mounted on it, and its status says attached":  {"attached=a reported=a inuse=a sick=a", maxWait + 1, "report a"},
		"mounted on a node that is gone":               {"attached=a gone=a", maxWait, "again 1ms"},
		"mounted on a node that is gone for too long":  {"attached=a gone=a", maxWait + 1, "force a for timeout"},
		"mounted on a node out of service":             {"attached=a inuse=a sick=a out=a", 0, "force a for out-of-service"},
		"too long, and time is no reason":              {"patient attached=a reported=a inuse=a sick=a", time.Hour, ""},
		"gone, and time is no reason":                  {"patient attached=a gone=a", time.Hour, ""},
		"out of service is one":                        {"patient attached=a inuse=a sick=a out=a", 0, "force a for out-of-service"},
		"its pod is still there":                       {"pod=p@a attached=a reported=a inuse=a sick=a out=a", time.Hour, ""},
		"not mounted on a node that is not well":       {"attached=a sick=a", 0, "detach a"},
		"being detached, and the node's status is not": {"detaching=a reported=a", 0, "report a"},

		"its driver needs no attaching any more": {"mounting=a attached=a reported=a inuse=a", 20 * time.Second, "again 40s"},
		"it does not, and is in use":             {"mounting=a attached=a reported=a inuse=a", turnTime, ""},
		"it does not, and is not in use":         {"mounting=a attached=a reported=a", turnTime, "report a"},
		"it does not, and may be in use soon":    {"mounting=a attaching=a", 0, "again 1m0s"},
		"the attacher fails":                     {"pod=p@a failed=a", 0, `p: AttachVolume.Attach failed for volume "pv" : no disk`},
		"the attacher takes for ever":            {"pod=p@a attaching=a", 2 * time.Minute, `p: AttachVolume.Attach failed for volume "pv" : timed out waiting for external-attacher of d CSI driver to attach volume h, again 2m0s`},
		"it failed, and is wanted no more":       {"failed=a", 0, "detach a"},
		"it failed where others may try it":      {"multi pod=p@a pod=q@b failed=a", 0, `attach b, p: AttachVolume.Attach failed for volume "pv" : no disk`},
	} {
		m := newMemory()
		if tt.after > 0 {
			before := world(tt.world)
			for _, a := range before.attachments { // unwanted since the start, and silent
				a.CreationTimestamp = metav1.NewTime(start)
			}
			plan(before, m, start)
		}
		if got := plan(world(tt.world), m, start.Add(tt.after)).String(); got != tt.want {
			t.Errorf("%s: %s\nwant %s", name, got, tt.want)
		}
		if tt.world != "" && world(tt.world).nodes["a"].foreign {
			continue
		}
		// A second look repeats no event.
		if got := plan(world(tt.world), m, start.Add(tt.after)).warn; len(got) > 0 {
			t.Errorf("%s: told again: %v", name, got)
		}
		if plan(world(""), m, start); !m.empty() {
			t.Errorf("%s: remembered for ever: %+v", name, m)
		}
	}
}

// The wait begins anew for a node whose pods needed the volume meanwhile.
func TestWaitBeginsAnew(t *testing.T) {
	m := newMemory()
	alone, used := "attached=a reported=a inuse=a sick=a", "pod=p@a attached=a reported=a inuse=a sick=a"
	for _, step := range []struct {
		world string
		at    time.Duration
		want  string
	}{
		{alone, 0, "again 6m0.001s"}, {used, 5 * time.Minute, ""}, {alone, 7 * time.Minute, "again 6m0.001s"},
		{alone, 13*time.Minute + 1, "report a"}, {"attached=a inuse=a sick=a", 13*time.Minute + 2, "force a for timeout"},
	} {
		if got := plan(world(step.world), m, start.Add(step.at)).String(); got != step.want {
			t.Errorf("at %s: %s, want %s", step.at, got, step.want)
		}
	}
}

// Each new failure of an attacher is told, and the same one once.
func TestFailuresAreReportedOnce(t *testing.T) {
	m, v := newMemory(), world("pod=p@a failed=a")
	events := func(at time.Duration) int { return len(plan(v, m, start.Add(at)).warn) }
	a := v.attachments["a"]
	got := []int{events(time.Second), events(2 * time.Second)}
	a.Status.AttachError.Time = metav1.NewTime(start.Add(3 * time.Second))
	got = append(got, events(4*time.Second), events(5*time.Second))
	a.Status.AttachError.Message = "still no disk"
	got = append(got, events(6*time.Second))
	a.UID = "new"
	got = append(got, events(7*time.Second))
	if fmt.Sprint(got) != "[1 0 1 0 1 1]" {
		t.Errorf("events: %v", got)
	}
}

// Pods that were told who has the volume are told too that it does not come free, each
// reason once.
func TestHeldVolumesAreReportedOnce(t *testing.T) {
	m := newMemory()
	for _, step := range []struct {
		world string
		at    time.Duration
		want  int
	}{
		{"pod=p@a attached=a reported=a pod=q@b", 0, 1}, {"detaching=a pod=q@b", time.Second, 0}, {"stuck=a pod=q@b", 2 * time.Second, 1},
		{"stuck=a pod=q@b", time.Hour, 0}, {"detaching=a pod=q@b", time.Hour, 1}, {"detaching=a", time.Hour, 0}, {"detaching=a pod=q@b", time.Hour, 1},
	} {
		if got := plan(world(step.world), m, start.Add(step.at)).warn; len(got) != step.want {
			t.Errorf("%s after %s: %v, want %d", step.world, step.at, got, step.want)
		}
	}
}
