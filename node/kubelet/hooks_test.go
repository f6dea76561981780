package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
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
