package apiserver

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestComponentStatuses(t *testing.T) {
	s, stop := newServer(t, func(c *Config) { c.Inside = []string{"kube-scheduler", "kube-controller-manager"} })
	defer stop()
	w := ask(s.Handler(), "GET", "/api/v1/componentstatuses", "root")
	var list corev1.ComponentStatusList
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil {
		t.Fatal(err, w.Body)
	}
	if got := w.Header().Get("Warning"); got != `299 - "v1 ComponentStatus is deprecated in v1.19+"` {
		t.Errorf("warning %q", got)
	}
	var names []string
	for _, c := range list.Items {
		names = append(names, c.Name)
		if len(c.Conditions) != 1 || c.Conditions[0].Status != corev1.ConditionTrue || c.Conditions[0].Message != "ok" {
			t.Errorf("%s: %+v", c.Name, c.Conditions)
		}
	}
	if got := strings.Join(names, " "); got != "scheduler controller-manager etcd-0" {
		t.Error(got)
	}
	for path, want := range map[string]string{
		"/api/v1/componentstatuses/etcd-0":                             `"name":"etcd-0"`,
		"/api/v1/componentstatuses/none":                               `componentstatus \"none\" not found`,
		"/api/v1/componentstatuses?fieldSelector=metadata.name=etcd-0": `"items":[{"metadata":{"name":"etcd-0"}`,
		"/api/v1/componentstatuses?labelSelector=a":                    `"items":[]`,
		"/api/v1/watch/componentstatuses":                              `"code":405`,
	} {
		if w := ask(s.Handler(), "GET", path, "root"); !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}
