package attachdetach

import (
	"fmt"
	"testing"
	"time"

	"knarr/controlplane/controllermanager/volumemetrics"
)

func (o outcome) String() string { return fmt.Sprintf("{%s %v %v}", o.name, o.took, o.failed) }

// TestSettle: what began is counted once it has come about, each failure of the attacher
// before it, and nothing of what is given up.
func TestSettle(t *testing.T) {
	type look struct {
		world string
		at    time.Duration
		want  string
	}
	for name, looks := range map[string][]look{
		"attached":          {{"pod=p@a attaching=a", time.Second, "[]"}, {"pod=p@a attached=a", 3 * time.Second, "[{volume_attach 3s false}]"}, {"pod=p@a attached=a", 4 * time.Second, "[]"}},
		"failed at first":   {{"pod=p@a failed=a", time.Second, "[{volume_attach 1s true}]"}, {"pod=p@a failed=a", 2 * time.Second, "[]"}, {"pod=p@a attached=a", 4 * time.Second, "[{volume_attach 3s false}]"}},
		"wanted no more":    {{"detaching=a", time.Second, "[]"}, {"", 2 * time.Second, "[]"}},
		"takes for ever":    {{"pod=p@a attaching=a", 2 * time.Minute, "[{volume_attach 2m0s true}]"}},
		"gone before it is": {{"", time.Second, "[]"}, {"pod=p@a attached=a", 2 * time.Second, "[]"}},
	} {
		m := newMemory()
		m.attaching["a"] = start
		for _, l := range looks {
			if got := fmt.Sprint(plan(world(l.world), m, start.Add(l.at)).done); got != l.want {
				t.Errorf("%s: %s after %v: %s, want %s", name, l.world, l.at, got, l.want)
			}
		}
	}
	for name, looks := range map[string][]look{
		"detached":       {{"detaching=a", time.Second, "[]"}, {"", 2 * time.Second, "[{volume_detach 2s false}]"}, {"", 3 * time.Second, "[]"}},
		"attached again": {{"detaching=a", time.Second, "[]"}, {"pod=p@a attaching=a again", 2 * time.Second, "[{volume_detach 2s false}]"}},
		"fails at first": {{"stuck=a", time.Second, "[{volume_detach 1s true}]"}, {"stuck=a", 2 * time.Second, "[]"}, {"", 4 * time.Second, "[{volume_detach 3s false}]"}},
		"takes for ever": {{"detaching=a", attachTime - 1, "[]"}, {"detaching=a", attachTime, "[{volume_detach 2m0s true}]"}, {"detaching=a", attachTime + 1, "[]"},
			{"detaching=a", 2 * attachTime, "[{volume_detach 2m0s true}]"}},
	} {
		m := newMemory()
		m.detaching["a"] = going{uid: "a", since: start}
		for _, l := range looks {
			v := world(l.world)
			if l.world == "pod=p@a attaching=a again" {
				v.attachments["a"].UID = "another"
			}
			if got := fmt.Sprint(plan(v, m, start.Add(l.at)).done); got != l.want {
				t.Errorf("%s: %s after %v: %s, want %s", name, l.world, l.at, got, l.want)
			}
		}
	}
	if volumemetrics.Attach != "volume_attach" || volumemetrics.Detach != "volume_detach" {
		t.Error("these are not upstream's names")
	}
}
