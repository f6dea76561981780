package apiserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/internal/run"
)

// components says how the parts of the control plane are, in upstream's order.
func (s *Server) components(ctx context.Context) []corev1.ComponentStatus {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	parts := []struct {
		name  string
		check func(context.Context) error
	}{
		{"scheduler", s.asked("kube-scheduler", "https://127.0.0.1:10259/healthz")},
		{"controller-manager", s.asked("kube-controller-manager", "https://127.0.0.1:10257/healthz")},
		{"etcd-0", func(ctx context.Context) error { _, err := s.cfg.Store.Revision(ctx); return err }},
	}
	all := make([]corev1.ComponentStatus, len(parts))
	var group run.Group
	for i, p := range parts {
		group.Go("component status", func() {
			c := corev1.ComponentCondition{Type: corev1.ComponentHealthy, Status: corev1.ConditionTrue, Message: "ok"}
			if err := run.Catch("component status", func() error { return p.check(ctx) }); err != nil {
				c.Status, c.Message = corev1.ConditionFalse, err.Error()
			}
			all[i] = corev1.ComponentStatus{ObjectMeta: metav1.ObjectMeta{Name: p.name}, Conditions: []corev1.ComponentCondition{c}}
		})
	}
	group.Wait()
	return all
}

// asked is the check of a component: one that shares this process is well as
// long as there is somebody to ask, others answer where upstream's do.
func (s *Server) asked(component, url string) func(context.Context) error {
	if slices.Contains(s.cfg.Inside, component) {
		return func(context.Context) error { return nil }
	}
	return func(ctx context.Context) error {
		// Health is no secret, and nobody signs these certificates.
		t := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := (&http.Client{Transport: t}).Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(io.LimitReader(resp.Body, 10<<10))
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("unhealthy http status code: %d body: %s", resp.StatusCode, body)
		}
		return err
	}
}
