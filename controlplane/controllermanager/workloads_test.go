package controllermanager

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// settle lets pods become ready until the deployment is complete.
func (c *cluster) settle(name string) *appsv1.Deployment {
	c.Helper()
	var d *appsv1.Deployment
	c.until(name+" is complete", func() (ok bool, err error) {
		c.makeReady()
		d, err = c.client.AppsV1().Deployments("default").Get(c.ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, cond := range d.Status.Conditions {
			ok = ok || cond.Type == appsv1.DeploymentProgressing && cond.Reason == "NewReplicaSetAvailable"
		}
		s := d.Status
		ok = ok && s.ObservedGeneration == d.Generation && s.UpdatedReplicas == *d.Spec.Replicas &&
			s.Replicas == *d.Spec.Replicas && s.AvailableReplicas == *d.Spec.Replicas
		if !ok {
			err = fmt.Errorf("status %+v", s)
		}
		return ok, err
	})
	return d
}

func (c *cluster) patch(name, patch string) {
	c.Helper()
	_, err := c.client.AppsV1().Deployments("default").Patch(c.ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	c.no(err)
}

func (c *cluster) setsOf() map[string]int32 {
	c.Helper()
	list, err := c.client.AppsV1().ReplicaSets("default").List(c.ctx, metav1.ListOptions{})
	c.no(err)
	out := map[string]int32{}
	for _, rs := range list.Items {
		out[rs.Annotations["deployment.kubernetes.io/revision"]] = *rs.Spec.Replicas
	}
	return out
}

func TestDeployment(t *testing.T) {
	for _, strategy := range []appsv1.DeploymentStrategyType{appsv1.RollingUpdateDeploymentStrategyType, appsv1.RecreateDeploymentStrategyType} {
		t.Run(string(strategy), func(t *testing.T) {
			inCluster(t, []string{"deployment-controller", "replicaset-controller", "serviceaccount-controller"}, func(c *cluster) {
				_, err := c.client.AppsV1().Deployments("default").Create(c.ctx, &appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{
					Replicas: new(int32(4)), Selector: selector, Template: template, RevisionHistoryLimit: new(int32(1)),
					Strategy: appsv1.DeploymentStrategy{Type: strategy}}}, metav1.CreateOptions{})
				c.no(err)
				c.settle("web")
				for i, image := range []string{"b", "c"} {
					c.patch("web", `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"`+image+`"}]}}}}`)
					d := c.settle("web")
					if want := fmt.Sprint(i + 2); d.Annotations["deployment.kubernetes.io/revision"] != want {
						t.Errorf("revision %q, want %s", d.Annotations["deployment.kubernetes.io/revision"], want)
					}
				}
				c.until("the oldest set is gone", func() (bool, error) {
					got := fmt.Sprint(c.setsOf())
					return got == "map[2:0 3:4]", fmt.Errorf("sets %s", got)
				})
				c.patch("web", `{"spec":{"replicas":7}}`)
				c.settle("web")
				c.patch("web", `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"b"}]}}}}`)
				if d := c.settle("web"); d.Annotations["deployment.kubernetes.io/revision"] != "4" {
					t.Errorf("after going back: revision %q", d.Annotations["deployment.kubernetes.io/revision"])
				}
				c.until("the sets have changed places", func() (bool, error) {
					got := fmt.Sprint(c.setsOf())
					return got == "map[3:0 4:7]", fmt.Errorf("sets %s", got)
				})
			})
		})
	}
}

func TestDeploymentStalls(t *testing.T) {
	inCluster(t, []string{"deployment-controller", "replicaset-controller", "serviceaccount-controller"}, func(c *cluster) {
		api := c.client.AppsV1().Deployments("default")
		_, err := api.Create(c.ctx, &appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{
			Selector: selector, Template: template, ProgressDeadlineSeconds: new(int32(90)),
			Strategy: appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: new(intstr.FromInt32(0))}}}}, metav1.CreateOptions{})
		c.no(err)
		progress := func() string {
			d, err := api.Get(c.ctx, "web", metav1.GetOptions{})
			c.no(err)
			for _, cond := range d.Status.Conditions {
				if cond.Type == appsv1.DeploymentProgressing {
					return fmt.Sprint(cond.Status, " ", cond.Reason)
				}
			}
			return ""
		}
		time.Sleep(80 * time.Second)
		if got := progress(); got != "True ReplicaSetUpdated" {
			t.Errorf("before the deadline: %s", got)
		}
		time.Sleep(15 * time.Second)
		if got := progress(); got != "False ProgressDeadlineExceeded" {
			t.Errorf("after the deadline: %s", got)
		}
		c.settle("web")
		c.patch("web", `{"spec":{"paused":true}}`)
		c.until("the pause is told", func() (bool, error) { return progress() == "Unknown DeploymentPaused", nil })
	})
}

// bind puts unbound pods on the node their affinity names, or any, as a scheduler
// does.
func (c *cluster) bind() {
	c.Helper()
	for _, p := range c.pods() {
		if p.Spec.NodeName != "" {
			continue
		}
		node := "node"
		if p.Spec.Affinity != nil {
			node = p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0]
		}
		c.no(c.client.CoreV1().Pods("default").Bind(c.ctx, &corev1.Binding{ObjectMeta: meta(p.Name), Target: corev1.ObjectReference{Kind: "Node", Name: node}}, metav1.CreateOptions{}))
	}
}

// finishDeletion removes pods that are being deleted, as kubelets do.
func (c *cluster) finishDeletion() {
	c.Helper()
	for _, p := range c.pods() {
		if p.DeletionTimestamp != nil {
			c.no(c.client.CoreV1().Pods("default").Delete(c.ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
		}
	}
}

func TestDaemonSet(t *testing.T) {
	for _, surge := range []bool{false, true} {
		t.Run(fmt.Sprintf("surge %v", surge), func(t *testing.T) {
			inCluster(t, []string{"daemonset-controller", "serviceaccount-controller", "node-lifecycle-controller"}, func(c *cluster) {
				for _, name := range []string{"n1", "n2", "n3"} {
					c.node(name)
				}
				_, err := c.client.CoreV1().Nodes().Patch(c.ctx, "n3", types.MergePatchType, []byte(`{"spec":{"taints":[{"key":"x","effect":"NoSchedule"}]}}`), metav1.PatchOptions{})
				c.no(err)
				synctest.Wait() // a pod that is there before the taint would stay
				api := c.client.AppsV1().DaemonSets("default")
				ds := &appsv1.DaemonSet{ObjectMeta: meta("d"), Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template}}
				if surge {
					ds.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType,
						RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxSurge: new(intstr.FromInt32(1)), MaxUnavailable: new(intstr.FromInt32(0))}}
				}
				_, err = api.Create(c.ctx, ds, metav1.CreateOptions{})
				c.no(err)
				settled := func(want string) {
					c.Helper()
					c.until("the set is settled", func() (bool, error) {
						c.bind()
						c.makeReady()
						c.finishDeletion()
						d, err := api.Get(c.ctx, "d", metav1.GetOptions{})
						c.no(err)
						s := d.Status
						got := fmt.Sprintf("%d of %d, %d updated, %d available, %d pods", s.CurrentNumberScheduled, s.DesiredNumberScheduled, s.UpdatedNumberScheduled, s.NumberAvailable, len(c.pods()))
						return got == want && s.ObservedGeneration == d.Generation, fmt.Errorf("%s", got)
					})
				}
				settled("2 of 2, 2 updated, 2 available, 2 pods")
				_, err = api.Patch(c.ctx, "d", types.MergePatchType, []byte(`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"new"}]}}}}`), metav1.PatchOptions{})
				c.no(err)
				settled("2 of 2, 2 updated, 2 available, 2 pods")
				for _, p := range c.pods() {
					if p.Spec.Containers[0].Image != "new" {
						t.Errorf("pod %s is of the old template", p.Name)
					}
				}
				_, err = c.client.CoreV1().Nodes().Patch(c.ctx, "n3", types.MergePatchType, []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{})
				c.no(err)
				settled("3 of 3, 3 updated, 3 available, 3 pods")
				list, err := c.client.AppsV1().ControllerRevisions("default").List(c.ctx, metav1.ListOptions{})
				c.no(err)
				if len(list.Items) != 2 || list.Items[0].Revision+list.Items[1].Revision != 3 {
					t.Errorf("revisions %v", list.Items)
				}
			})
		})
	}
}

func TestStatefulSet(t *testing.T) {
	for _, policy := range []appsv1.PodManagementPolicyType{appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement} {
		t.Run(string(policy), func(t *testing.T) {
			inCluster(t, []string{"statefulset-controller", "serviceaccount-controller"}, func(c *cluster) {
				api := c.client.AppsV1().StatefulSets("default")
				_, err := api.Create(c.ctx, &appsv1.StatefulSet{ObjectMeta: meta("db"), Spec: appsv1.StatefulSetSpec{
					Replicas: new(int32(3)), Selector: selector, Template: template, ServiceName: "db", PodManagementPolicy: policy,
					VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
						AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
						Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}},
				}}, metav1.CreateOptions{})
				c.no(err)
				synctest.Wait()
				if n, want := len(c.pods()), map[appsv1.PodManagementPolicyType]int{appsv1.OrderedReadyPodManagement: 1, appsv1.ParallelPodManagement: 3}[policy]; n != want {
					t.Errorf("%d pods before any is ready, want %d", n, want)
				}
				settled := func(want string) {
					c.Helper()
					c.until("the set is settled", func() (bool, error) {
						c.makeReady()
						c.finishDeletion()
						s, err := api.Get(c.ctx, "db", metav1.GetOptions{})
						c.no(err)
						names := ""
						for _, p := range c.pods() {
							names += p.Name + "=" + p.Spec.Containers[0].Image + " "
						}
						st := s.Status
						got := fmt.Sprintf("%s%d ready %d current %d updated", names, st.ReadyReplicas, st.CurrentReplicas, st.UpdatedReplicas)
						return got == want && st.ObservedGeneration == s.Generation && st.CurrentRevision == st.UpdateRevision, fmt.Errorf("%s", got)
					})
				}
				settled("db-0=example.test/web:1 db-1=example.test/web:1 db-2=example.test/web:1 3 ready 3 current 3 updated")
				claims, err := c.client.CoreV1().PersistentVolumeClaims("default").List(c.ctx, metav1.ListOptions{})
				c.no(err)
				if len(claims.Items) != 3 || claims.Items[2].Name != "data-db-2" {
					t.Errorf("claims %v", claims.Items)
				}
				_, err = api.Patch(c.ctx, "db", types.MergePatchType, []byte(`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"new"}]}}}}`), metav1.PatchOptions{})
				c.no(err)
				settled("db-0=new db-1=new db-2=new 3 ready 3 current 3 updated")
				_, err = api.Patch(c.ctx, "db", types.MergePatchType, []byte(`{"spec":{"replicas":1}}`), metav1.PatchOptions{})
				c.no(err)
				settled("db-0=new 1 ready 1 current 1 updated")
			})
		})
	}
}

// database makes a StatefulSet with a claim for each of its pods.
func (c *cluster) database(replicas int32, policy appsv1.PodManagementPolicyType, retention *appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy) {
	c.Helper()
	_, err := c.client.AppsV1().StatefulSets("default").Create(c.ctx, &appsv1.StatefulSet{ObjectMeta: meta("db"), Spec: appsv1.StatefulSetSpec{
		Replicas: &replicas, Selector: selector, Template: template, ServiceName: "db", PodManagementPolicy: policy, PersistentVolumeClaimRetentionPolicy: retention,
		VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}},
	}}, metav1.CreateOptions{})
	c.no(err)
}

// TestClaimRetention scales a set with claims down and up again. A claim in use
// must not be left with the reference to a pod that is no more, and references
// of others stay.
func TestClaimRetention(t *testing.T) {
	const retain, remove = appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	owners := func(c *cluster) string {
		list, err := c.client.CoreV1().PersistentVolumeClaims("default").List(c.ctx, metav1.ListOptions{})
		c.no(err)
		out := ""
		for _, claim := range list.Items {
			out += claim.Name + ":"
			for _, ref := range claim.OwnerReferences {
				out += " " + ref.Kind + "/" + ref.Name
			}
			out += "; "
		}
		return out
	}
	scale := func(c *cluster, replicas int) {
		_, err := c.client.AppsV1().StatefulSets("default").Patch(c.ctx, "db", types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas), metav1.PatchOptions{})
		c.no(err)
	}
	for name, one := range map[string]struct {
		deleted, scaled           appsv1.PersistentVolumeClaimRetentionPolicyType
		whole, down, back, anewUp string
	}{
		"retain": {retain, retain,
			"data-db-0: ConfigMap/backup; data-db-1: ConfigMap/backup; ", "data-db-0: ConfigMap/backup; data-db-1: ConfigMap/backup; ",
			"data-db-0: ConfigMap/backup; data-db-1: ConfigMap/backup; ", "data-db-0: ConfigMap/backup; data-db-1: ConfigMap/backup; "},
		"delete when scaled": {retain, remove,
			"data-db-0: ConfigMap/backup; data-db-1: ConfigMap/backup; ", "data-db-0: ConfigMap/backup; data-db-1: ConfigMap/backup Pod/db-1; ",
			"data-db-0: ConfigMap/backup; data-db-1: ConfigMap/backup; ", "data-db-0: ConfigMap/backup; data-db-1: ConfigMap/backup; "},
		"delete": {remove, remove,
			"data-db-0: ConfigMap/backup StatefulSet/db; data-db-1: ConfigMap/backup StatefulSet/db; ", "data-db-0: ConfigMap/backup StatefulSet/db; data-db-1: ConfigMap/backup Pod/db-1; ",
			"data-db-0: ConfigMap/backup StatefulSet/db; data-db-1: ConfigMap/backup StatefulSet/db; ", "data-db-0: ConfigMap/backup StatefulSet/db; data-db-1: ConfigMap/backup StatefulSet/db; "},
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, []string{"statefulset-controller", "serviceaccount-controller"}, func(c *cluster) {
				c.database(2, appsv1.ParallelPodManagement, &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenDeleted: one.deleted, WhenScaled: one.scaled})
				c.until("both pods run", func() (bool, error) { c.bind(); c.makeReady(); return len(c.pods()) == 2, nil })
				backup, err := c.client.CoreV1().ConfigMaps("default").Create(c.ctx, &corev1.ConfigMap{ObjectMeta: meta("backup")}, metav1.CreateOptions{})
				c.no(err)
				for _, claim := range []string{"data-db-0", "data-db-1"} {
					have, err := c.client.CoreV1().PersistentVolumeClaims("default").Get(c.ctx, claim, metav1.GetOptions{})
					c.no(err)
					have.OwnerReferences = append([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "backup", UID: backup.UID}}, have.OwnerReferences...)
					_, err = c.client.CoreV1().PersistentVolumeClaims("default").Update(c.ctx, have, metav1.UpdateOptions{})
					c.no(err)
				}
				expect := func(when, want string) {
					t.Helper()
					c.until(when, func() (bool, error) {
						c.makeReady()
						got := owners(c)
						return got == want, fmt.Errorf("%s, want %s", got, want)
					})
				}
				expect("two replicas", one.whole)
				scale(c, 1) // the pod stays, deleted, until its kubelet has ended it
				expect("one replica", one.down)
				scale(c, 2)
				expect("two replicas again, before the pod has ended", one.back)
				c.finishDeletion()
				c.until("the new pod is there", func() (bool, error) { c.makeReady(); return len(c.pods()) == 2, nil })
				expect("two replicas with a new pod", one.anewUp)
			})
		})
	}
}

// TestClaimOfFormerPod: a claim that goes with the pod before is not given to the
// pod after it, however long the garbage collector takes.
func TestClaimOfFormerPod(t *testing.T) {
	inCluster(t, []string{"statefulset-controller", "serviceaccount-controller"}, func(c *cluster) {
		c.database(2, appsv1.ParallelPodManagement, &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
			WhenScaled: appsv1.DeletePersistentVolumeClaimRetentionPolicyType, WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType})
		c.until("both pods run", func() (bool, error) { c.makeReady(); return len(c.pods()) == 2, nil })
		scale := func(replicas string) {
			_, err := c.client.AppsV1().StatefulSets("default").Patch(c.ctx, "db", types.MergePatchType, []byte(`{"spec":{"replicas":`+replicas+`}}`), metav1.PatchOptions{})
			c.no(err)
			synctest.Wait()
			c.finishDeletion()
			synctest.Wait()
		}
		scale("1")
		scale("2")
		time.Sleep(time.Minute)
		if n := len(c.pods()); n != 1 {
			t.Errorf("%d pods while the claim of the former one is there", n)
		}
		c.no(c.client.CoreV1().PersistentVolumeClaims("default").Delete(c.ctx, "data-db-1", metav1.DeleteOptions{}))
		claim, err := c.client.CoreV1().PersistentVolumeClaims("default").Get(c.ctx, "data-db-1", metav1.GetOptions{})
		if err == nil && len(claim.Finalizers) > 0 { // as the protection controller does
			claim.Finalizers = nil
			_, err = c.client.CoreV1().PersistentVolumeClaims("default").Update(c.ctx, claim, metav1.UpdateOptions{})
			c.no(err)
		}
		c.until("the second pod has a claim of its own", func() (bool, error) {
			after, err := c.client.CoreV1().PersistentVolumeClaims("default").Get(c.ctx, "data-db-1", metav1.GetOptions{})
			return err == nil && len(after.OwnerReferences) == 0 && len(c.pods()) == 2, fmt.Errorf("%v, %d pods", err, len(c.pods()))
		})
	})
}

// TestRolloutMends: in a set of pods without order, one low pod that is unwell
// does not keep a rollout, which may mend it, from going on.
func TestRolloutMends(t *testing.T) {
	inCluster(t, []string{"statefulset-controller", "serviceaccount-controller"}, func(c *cluster) {
		c.database(3, appsv1.ParallelPodManagement, nil)
		wellBut := func(bad string) {
			for _, p := range c.pods() {
				if p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodRunning && (p.Name != bad || p.Spec.Containers[0].Image == "new") {
					p.Status.Phase = corev1.PodRunning
					p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
					_, err := c.client.CoreV1().Pods("default").UpdateStatus(c.ctx, &p, metav1.UpdateOptions{})
					c.no(err)
				}
			}
		}
		synctest.Wait()
		wellBut("db-0")
		_, err := c.client.AppsV1().StatefulSets("default").Patch(c.ctx, "db", types.MergePatchType, []byte(`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"new"}]}}}}`), metav1.PatchOptions{})
		c.no(err)
		c.until("all pods are new", func() (bool, error) {
			c.finishDeletion()
			synctest.Wait()
			wellBut("db-0")
			got := ""
			for _, p := range c.pods() {
				got += p.Name + "=" + p.Spec.Containers[0].Image + " "
			}
			return got == "db-0=new db-1=new db-2=new ", fmt.Errorf("%s", got)
		})
	})
}
