package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/record"

	"knarr/node/kubelet/podtest"
)

// TestHookMetrics: a hook that is asked again without TLS, and one that may not sleep on, are
// counted and told.
func TestHookMetrics(t *testing.T) {
	events := record.NewFakeRecorder(10)
	k := &Kubelet{metrics: newMetrics(), events: events}
	pod := podtest.Pod("p", "c")
	run := func(ctx context.Context, h *corev1.LifecycleHandler) error {
		return k.hook(ctx, pod, &pod.Spec.Containers[0], "id", "127.0.0.1", h)
	}
	counts := func(fallbacks, sleeps float64) {
		t.Helper()
		var f, s dto.Metric
		_, _ = k.metrics.hookFallbacks.Write(&f), k.metrics.sleepsCut.Write(&s)
		if f.GetCounter().GetValue() != fallbacks || s.GetCounter().GetValue() != sleeps {
			t.Errorf("%v fallbacks, %v sleeps", f.GetCounter().GetValue(), s.GetCounter().GetValue())
		}
	}
	srv := httptest.NewServer(http.NotFoundHandler())
	at, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	get := &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.Parse(at.Port()), Scheme: corev1.URISchemeHTTPS, Path: "/"}}
	if err := run(t.Context(), get); err != nil { // though it is answered by 404
		t.Errorf("asked again: %v", err)
	}
	counts(1, 0)
	if e := <-events.Events; e != "Warning LifecycleHTTPFallback request to HTTPS lifecycle hook "+at.Host+" got HTTP response, retry with HTTP succeeded" {
		t.Errorf("event %q", e)
	}
	srv.Close()
	if err := run(t.Context(), get); err == nil {
		t.Error("nobody is there")
	}
	if err := run(t.Context(), &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{}}); err != nil {
		t.Error(err)
	}
	counts(1, 0)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ended, &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 3600}}); err == nil {
		t.Error("it slept for an hour")
	}
	counts(1, 1)
}

// TestLoggedHook: what a hook prints does not get into the log.
func TestLoggedHook(t *testing.T) {
	failed := fmt.Errorf("wrapped: %w", hookExit{errors.New("command 'x' exited with 3: password"), 3})
	if got := loggedHook(failed).Error(); got != "its command exited with 3" {
		t.Errorf("logged: %s", got)
	}
	if other := errors.New("connection refused"); loggedHook(other) != other {
		t.Error("another failure is not logged as it is")
	}
}

// TestHookFailures: what failed is said in upstream's words, whatever kind of hook it was. No
// time but the container's ends a hook.
func TestHookFailures(t *testing.T) {
	if hookClient.Timeout != 0 {
		t.Errorf("a hook that asks a server ends after %v", hookClient.Timeout)
	}
	k := &Kubelet{metrics: newMetrics(), events: record.NewFakeRecorder(10)}
	pod := podtest.Pod("p", "c")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	const which = ` for Container "c" in Pod "p_ns(uid-p)" failed - error: `
	socket := &corev1.LifecycleHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(1)}}
	for _, c := range []struct {
		handler *corev1.LifecycleHandler
		want    string
	}{
		{&corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("none"), Path: "/x"}}, `HTTP lifecycle hook (/x)` + which},
		{&corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 9}}, `Sleep lifecycle hook (9)` + which + "container terminated before sleep hook finished"},
		{socket, "Cannot run handler: invalid handler: " + socket.String()},
	} {
		if err := k.hook(ended, pod, &pod.Spec.Containers[0], "id", "127.0.0.1", c.handler); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}

// TestFailedPostStart: a container whose postStart hook fails ends like any other, with its
// preStop hook.
func TestFailedPostStart(t *testing.T) {
	n := newNode(t)
	var stopped atomic.Bool
	n.rt.OnExec = func(_ string, command []string) (string, int32) {
		if command[0] == "stop" {
			stopped.Store(true)
			return "", 0
		}
		return "no", 1
	}
	n.start()
	p := podtest.Pod("p", "c")
	do := func(what string) *corev1.LifecycleHandler {
		return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{what}}}
	}
	p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: do("start"), PreStop: do("stop")}
	n.api.addPod(p)
	n.until("it says why", func() bool {
		s := n.api.pod("p").Status.ContainerStatuses
		return len(s) == 1 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == "PostStartHookError"
	})
	if !stopped.Load() {
		t.Error("its preStop hook did not run")
	}
}
