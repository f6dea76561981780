package apiserver_test

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// The words are those that upstream's kube-apiserver v1.36.3 answers with.
func TestPodSecurity(t *testing.T) {
	w := newWorld(t)
	var got warnings
	cfg := w.Config()
	cfg.WarningHandler = &got
	client, err := kubernetes.NewForConfig(cfg)
	w.must(err)
	warned := func(want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("warnings\n%q, want\n%q", got, want)
		}
		got = nil
	}
	_, err = client.CoreV1().Namespaces().Create(w.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "no", Labels: map[string]string{
		"pod-security.kubernetes.io/enforce": "nosuch", "pod-security.kubernetes.io/warn-version": "1.x"}}}, metav1.CreateOptions{})
	refused(t, err, `Namespace "no" is invalid: [metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: "nosuch": must be one of privileged, baseline, restricted, metadata.labels[pod-security.kubernetes.io/warn-version]: Invalid value: "1.x": must be "latest" or "v1.x"]`)

	pods := client.CoreV1().Pods("default")
	bold := func(name string) error {
		p := podNamed(name, "")
		p.Spec.HostNetwork = true
		p.Spec.Containers[0].Name = "c"
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
		_, err := pods.Create(w.ctx, p, metav1.CreateOptions{})
		return err
	}
	for _, name := range []string{"a", "b", "z"} {
		w.must(bold(name))
	}
	warned()
	label := func(enforce string) error {
		_, err := client.CoreV1().Namespaces().Patch(w.ctx, "default", types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"`+enforce+`","pod-security.kubernetes.io/warn":"restricted"}}}`), metav1.PatchOptions{})
		return err
	}
	w.must(label("baseline"))
	warned(`existing pods in namespace "default" violate the new PodSecurity enforce level "baseline:latest"`,
		"a (and 2 other pods): host namespaces, privileged")
	const refusal = `violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true), privileged (container "c" must not set securityContext.privileged=true)`
	refused(t, bold("c"), `pods "c" is forbidden: `+refusal)
	warned()

	const rest = `allowPrivilegeEscalation != false (container "c" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container "c" must set securityContext.capabilities.drop=["ALL"]), runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true), seccompProfile (pod or container "c" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")`
	mild := podNamed("mild", "")
	mild.Spec.Containers[0].Name = "c"
	_, err = pods.Create(w.ctx, mild, metav1.CreateOptions{})
	w.must(err)
	warned(`would violate PodSecurity "restricted:latest": ` + rest)
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Spec: mild.Spec}
	template.Spec.HostPID = true
	_, err = client.AppsV1().Deployments("default").Create(w.ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template}}, metav1.CreateOptions{})
	w.must(err)
	warned(`would violate PodSecurity "restricted:latest": host namespaces (hostPID=true), ` + rest)

	refused(t, label("x"), `Namespace "default" is invalid: metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: "x": must be one of privileged, baseline, restricted`)
	// Who is in may be changed where no standard looks.
	_, err = pods.Patch(w.ctx, "a", types.StrategicMergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{})
	w.must(err)
	_, err = pods.Patch(w.ctx, "a", types.StrategicMergePatchType, []byte(`{"spec":{"containers":[{"name":"c","image":"j"}]}}`), metav1.PatchOptions{})
	refused(t, err, `pods "a" is forbidden: `+refusal)
	w.must(label("privileged"))
	got = nil
	w.must(bold("free"))
}
