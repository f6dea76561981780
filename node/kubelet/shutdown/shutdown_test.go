package shutdown

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/shutdown/logindtest"
)

func TestGroups(t *testing.T) {
	pod := func(name string, priority int32) *corev1.Pod {
		p := podtest.Pod(name, "c")
		p.Spec.Priority = &priority
		return p
	}
	pods := []*corev1.Pod{podtest.Pod("none", "c"), pod("negative", -10), pod("some", 1000), pod("more", 100000), pod("critical", 2000001000)}
	simple := &configuration.Settings{ShutdownGracePeriod: metav1.Duration{Duration: 30 * time.Second}, ShutdownGracePeriodCriticalPods: metav1.Duration{Duration: 10 * time.Second}}
	byPriority := &configuration.Settings{ShutdownGracePeriodByPodPriority: []kubeletconfig.ShutdownGracePeriodByPodPriority{
		{Priority: 100000, ShutdownGracePeriodSeconds: 5}, {Priority: 0, ShutdownGracePeriodSeconds: 60}, {Priority: 1000, ShutdownGracePeriodSeconds: 20}}}
	for _, c := range []struct {
		settings *configuration.Settings
		want     string
	}{
		{&configuration.Settings{}, ""},
		{simple, "20s none negative some more; 10s critical"},
		{byPriority, "1m0s none negative; 20s some; 5s more critical"},
	} {
		var got []string
		groups := Groups(c.settings)
		if len(groups) > 0 {
			groups = Assign(groups, pods)
		}
		for _, g := range groups {
			names := []string{g.Period.String()}
			for _, p := range g.Pods {
				names = append(names, p.Name)
			}
			got = append(got, strings.Join(names, " "))
		}
		if is := strings.Join(got, "; "); is != c.want {
			t.Errorf("%s, want %s", is, c.want)
		}
	}
}

// TestRun: on a D-Bus of its own, with a logind that does what the real one does.
// TestForget: what is left of a kubelet that was killed goes, what is another's stays.
func TestForget(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, Override)
	if err := Forget(dir, "/a"); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(path, []byte(header("/a")+"[Login]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Forget(dir, "/b"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("another's: %v", err)
	}
	if err := Forget(dir, "/a"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("its own stays: %v", err)
	}
}

func TestRun(t *testing.T) {
	logind := logindtest.Start(t, time.Second)
	dir := t.TempDir()
	began, cancelled := make(chan bool), make(chan bool)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, Config{
			Address: logind.Address, Dir: dir, Delay: 20 * time.Second,
			Begin:     func(context.Context) { began <- true; <-began },
			Cancelled: func(context.Context) { cancelled <- true },
		})
	}()
	logind.WaitLocks(t, 1)
	if b, err := os.ReadFile(filepath.Join(dir, Override)); err != nil || !strings.Contains(string(b), "InhibitDelayMaxSec=20\n") {
		t.Errorf("the override is %q, %v", b, err)
	}
	logind.Prepare(t, true)
	<-began
	if n := logind.Locks(); n != 1 {
		t.Errorf("%d locks while pods end", n)
	}
	began <- true
	logind.WaitLocks(t, 0)
	logind.Prepare(t, false)
	<-cancelled
	logind.WaitLocks(t, 1)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	logind.WaitLocks(t, 0)
	if _, err := os.Stat(filepath.Join(dir, Override)); !os.IsNotExist(err) {
		t.Errorf("the override stays: %v", err)
	}
}
