package controllermanager

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"knarr/internal/apitest"
)

func TestGarbage(t *testing.T) {
	for policy, want := range map[metav1.DeletionPropagation]string{
		metav1.DeletePropagationForeground: "0 sets, 0 pods",
		metav1.DeletePropagationBackground: "0 sets, 0 pods",
		metav1.DeletePropagationOrphan:     "1 sets, 3 pods",
	} {
		t.Run(string(policy), func(t *testing.T) {
			inCluster(t, []string{"deployment-controller", "replicaset-controller", "serviceaccount-controller", "garbage-collector-controller"}, func(c *cluster) {
				api := c.client.AppsV1().Deployments("default")
				_, err := api.Create(c.ctx, &appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{
					Replicas: new(int32(3)), Selector: selector, Template: template}}, metav1.CreateOptions{})
				c.no(err)
				c.settle("web")
				c.no(api.Delete(c.ctx, "web", metav1.DeleteOptions{PropagationPolicy: &policy}))
				c.until("what is left is right", func() (bool, error) {
					_, err := api.Get(c.ctx, "web", metav1.GetOptions{})
					sets, lerr := c.client.AppsV1().ReplicaSets("default").List(c.ctx, metav1.ListOptions{})
					c.no(lerr)
					got := fmt.Sprintf("%d sets, %d pods", len(sets.Items), len(c.pods()))
					owners := 0
					for _, rs := range sets.Items {
						owners += len(rs.OwnerReferences)
					}
					return apierrors.IsNotFound(err) && got == want && owners == 0, fmt.Errorf("%s, %d owners, %v", got, owners, err)
				})
			})
		})
	}
}

// TestGarbageOfAllKinds has every controller share its informers with the
// collector, which must be shown every object of every resource: one that only
// watches a selection leaves the others of its kind undeleted for ever.
func TestGarbageOfAllKinds(t *testing.T) {
	var watched sync.Map
	record := func(cfg *rest.Config) *rest.Config {
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(req *http.Request) (*http.Response, error) {
				if q := req.URL.Query(); q.Get("watch") != "" && q.Get("fieldSelector")+q.Get("labelSelector") == "" {
					watched.Store(req.URL.Path, true)
				}
				return next.RoundTrip(req)
			})
		})
		return cfg
	}
	inClusterOf(t, func(s *apitest.Server) Config {
		cfg := config(s)
		clientFor := cfg.ClientFor
		cfg.Kube = record(cfg.Kube)
		cfg.ClientFor = func(account string) *rest.Config { return record(clientFor(account)) }
		return cfg
	}, func(c *cluster) {
		lists, err := c.client.Discovery().ServerPreferredResources()
		c.no(err)
		asked := 0
		for _, list := range lists {
			for _, res := range list.APIResources {
				if !slices.Contains(res.Verbs, "delete") || !slices.Contains(res.Verbs, "watch") || res.Name == "events" {
					continue
				}
				asked++
				path := "/apis/" + list.GroupVersion + "/" + res.Name
				if list.GroupVersion == "v1" {
					path = "/api/v1/" + res.Name
				}
				if _, ok := watched.Load(path); !ok {
					t.Errorf("nobody watches all %s", path)
				}
			}
		}
		if asked < 40 {
			t.Errorf("discovery tells of %d resources only", asked)
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func TestGarbageOfAbsentOwners(t *testing.T) {
	inCluster(t, []string{"garbage-collector-controller"}, func(c *cluster) {
		maps := c.client.CoreV1().ConfigMaps("default")
		make := func(name string, owners ...*corev1.ConfigMap) *corev1.ConfigMap {
			m := &corev1.ConfigMap{ObjectMeta: meta(name)}
			for _, o := range owners {
				m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: o.Name, UID: o.UID})
			}
			made, err := maps.Create(c.ctx, m, metav1.CreateOptions{})
			c.no(err)
			return made
		}
		ghost := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "ghost", UID: "0000"}}
		elsewhere, err := c.client.CoreV1().ConfigMaps("kube-system").Create(c.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere"}}, metav1.CreateOptions{})
		c.no(err)
		owner := make("owner")
		make("doomed", ghost)
		make("foreign", elsewhere)
		make("both", ghost, owner)
		make("kept", owner)
		c.until("the ownerless are gone", func() (bool, error) {
			list, err := maps.List(c.ctx, metav1.ListOptions{})
			c.no(err)
			got := ""
			for _, m := range list.Items {
				got += fmt.Sprintf("%s(%d) ", m.Name, len(m.OwnerReferences))
			}
			return got == "both(1) kept(1) owner(0) ", fmt.Errorf("left: %s", got)
		})
		time.Sleep(time.Minute)
		events, err := c.client.CoreV1().Events("default").List(c.ctx, metav1.ListOptions{FieldSelector: "reason=OwnerRefInvalidNamespace"})
		c.no(err)
		want := fmt.Sprintf(`ownerRef [v1/ConfigMap, namespace: default, name: elsewhere, uid: %s] does not exist in namespace "default"`, elsewhere.UID)
		if len(events.Items) != 1 || events.Items[0].Message != want {
			t.Errorf("events %v, want %s", events.Items, want)
		}
	})
}
