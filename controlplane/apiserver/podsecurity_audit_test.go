package apiserver_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver"
	"knarr/controlplane/apiserver/admission/plugin"
	"knarr/controlplane/apiserver/audit"
	"knarr/internal/apitest"
)

// What the standards say of a write is in its audit event, in upstream's words.
func TestPodSecurityAnnotations(t *testing.T) {
	policy, err := audit.Load("testdata/audit-policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "admission.yaml")
	if err := os.WriteFile(file, []byte(`
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1
    kind: PodSecurityConfiguration
    defaults: {audit: baseline, audit-version: v1.30}
    exemptions: {namespaces: [kube-system], usernames: [trusted], runtimeClasses: [vm]}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	off := []string{"ServiceAccount", "RuntimeClass"}
	settings, err := plugin.Load(file, nil, off)
	if err != nil {
		t.Fatal(err)
	}
	const (
		prefix   = "pod-security.kubernetes.io/"
		enforced = prefix + "enforce-policy"
		violates = prefix + "audit-violations"
		exempt   = prefix + "exempt"
		what     = `would violate PodSecurity "baseline:v1.30": host namespaces (hostNetwork=true)`
		spec     = `"hostNetwork":true,"containers":[{"name":"c","image":"i"}]`
		pod      = `{"metadata":{"name":"p"},"spec":{` + spec + `}}`
	)
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		policy.To("log", audit.NewLog(&log, audit.JSON), false, audit.Truncating{})
		s, stop := apitest.New(t, func(c *apiserver.Config) {
			c.Audit, c.Admission, c.DisableAdmission = policy, settings, off
			nodes := []string{user.SystemPrivilegedGroup}
			c.Tokens = map[string]user.Info{"a": &user.DefaultInfo{Name: "a", Groups: nodes}, "t": &user.DefaultInfo{Name: "trusted", Groups: nodes}}
		})
		defer stop()
		for _, tt := range []struct {
			token, path, body string
			want              map[string]string
		}{
			{"a", "/api/v1/namespaces/default/pods", pod, map[string]string{enforced: "privileged:latest", violates: what}},
			{"a", "/api/v1/namespaces/default/pods", `{"metadata":{"name":"q"},"spec":{"containers":[{"name":"c","image":"i"}]}}`, map[string]string{enforced: "privileged:latest"}},
			{"a", "/api/v1/namespaces/kube-system/pods", pod, map[string]string{exempt: "namespace"}},
			{"t", "/api/v1/namespaces/default/pods", strings.Replace(pod, `"p"`, `"r"`, 1), map[string]string{exempt: "user"}},
			{"a", "/api/v1/namespaces/default/pods", `{"metadata":{"name":"s"},"spec":{"runtimeClassName":"vm",` + spec + `}}`, map[string]string{exempt: "runtimeClass"}},
			{"a", "/apis/apps/v1/namespaces/default/deployments", `{"metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{` + spec + `}}}}`,
				map[string]string{violates: what}},
		} {
			log.Reset()
			r := httptest.NewRequestWithContext(t.Context(), "POST", tt.path, strings.NewReader(tt.body))
			r.Header.Set("Authorization", "Bearer "+tt.token)
			rw := httptest.NewRecorder()
			s.Handler().ServeHTTP(rw, r)
			var ev struct {
				Annotations map[string]string `json:"annotations"`
			}
			if err := json.Unmarshal(log.Bytes(), &ev); err != nil || rw.Code != 201 {
				t.Fatalf("%d %s: %v: %s", rw.Code, rw.Body, err, log.String())
			}
			maps.DeleteFunc(ev.Annotations, func(k, _ string) bool { return !strings.HasPrefix(k, prefix) })
			if !maps.Equal(ev.Annotations, tt.want) {
				t.Errorf("%s as %s: %v, want %v", tt.path, tt.token, ev.Annotations, tt.want)
			}
		}
	})
}
