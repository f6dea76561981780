package apitest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"

	"knarr/internal/apitest"
)

func TestServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := apitest.New(t)
		defer stop()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Hour)
		defer cancel()
		client := s.Client(t)
		if _, err := client.CoreV1().Namespaces().Get(ctx, "kube-system", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		f := informers.NewSharedInformerFactory(client, 0)
		if _, err := client.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		inf := f.Core().V1().ConfigMaps().Informer()
		f.Start(ctx.Done())
		soon, done := context.WithTimeout(ctx, 10*time.Second)
		defer done()
		f.WaitForCacheSync(soon.Done())
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"k": "v"}}
		if _, err := client.CoreV1().ConfigMaps("default").Create(ctx, cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, ok, _ := inf.GetIndexer().GetByKey("default/a"); !ok {
			t.Error("the informer did not see the object")
		}
		bob := s.Client(t, &user.DefaultInfo{Name: "bob"})
		_, err := bob.CoreV1().ConfigMaps("default").Get(ctx, "a", metav1.GetOptions{})
		if want := `configmaps "a" is forbidden: User "bob" cannot get resource "configmaps" in API group "" in the namespace "default"`; !apierrors.IsForbidden(err) || err.Error() != want {
			t.Errorf("got %v\nwant %s", err, want)
		}
		time.Sleep(time.Hour) // watches end and begin anew
		cancel()
		f.Shutdown()
	})
}
