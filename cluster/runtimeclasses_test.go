package cluster

import (
	"context"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/internal/apitest"
	"knarr/internal/run"
)

func TestRuntimeClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, stop := apitest.New(t)
		defer stop()
		client := api.Client(t)
		ctx, cancel := context.WithCancel(t.Context())
		var group run.Group
		group.Go("runtime classes", func() {
			if err := runtimeClasses(ctx, client); err != nil {
				t.Error(err)
			}
		})
		defer group.Wait()
		defer cancel()
		// Somebody's own is left as it is.
		_, err := client.NodeV1().RuntimeClasses().Create(ctx, &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "kata"}, Handler: "kata-fc"}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"", "runc", "crun", "runsc", "kata", "of-others"} {
			n.Status.RuntimeHandlers = append(n.Status.RuntimeHandlers, corev1.NodeRuntimeHandler{Name: name})
		}
		if _, err := client.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		classes, err := client.NodeV1().RuntimeClasses().List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, c := range classes.Items {
			got[c.Name] = c.Handler
		}
		want := map[string]string{"crun": "crun", "gvisor": "runsc", "kata": "kata-fc"}
		if len(got) != len(want) {
			t.Errorf("classes %v, want %v", got, want)
		}
		for name, handler := range want {
			if got[name] != handler {
				t.Errorf("class %s is of %q, want %q", name, got[name], handler)
			}
		}
	})
}
