package apiserver_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	standards "k8s.io/pod-security-admission/test"
)

// Upstream's own test of a server: each level in each version lets in what it
// must and refuses what it must, as pods and in templates, and exempts whom the
// configuration does.
func TestPodSecurityStandards(t *testing.T) {
	if testing.Short() {
		t.Skip("thousands of pods")
	}
	w := withPlugins(t, `
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1
    kind: PodSecurityConfiguration
    defaults: {enforce: baseline, audit: baseline, warn: baseline}
    exemptions: {usernames: [exempt-user], namespaces: [exempt-ns], runtimeClasses: [exempt-class]}
`)
	_, err := w.admin.NodeV1().RuntimeClasses().Create(w.ctx, &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "exempt-class"}, Handler: "h"}, metav1.CreateOptions{})
	w.must(err)
	standards.Run(t, standards.Options{
		ClientConfig: w.Config(),
		CreateNamespace: func(client kubernetes.Interface, name string, labels map[string]string) (*corev1.Namespace, error) {
			ns, err := standards.DefaultCreateNamespace(client, name, labels)
			if err == nil {
				w.account(name, "default")
			}
			return ns, err
		},
		ExemptClient:         w.Client(t, &user.DefaultInfo{Name: "exempt-user", Groups: []string{user.SystemPrivilegedGroup}}),
		ExemptNamespaces:     []string{"exempt-ns"},
		ExemptRuntimeClasses: []string{"exempt-class"},
	})
}
