package cluster

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"knarr/internal/controller"
	"knarr/node/containerruntime"
)

// publishRuntimeClasses makes the RuntimeClass of each runtime that a node has found
// beside its own, once one has, and once in this process: nodes tell of their handlers
// again and again. Whoever has made one of that name, or changed it, is right; it stays
// when the last such node goes, for the next one.
func (s *Server) publishRuntimeClasses(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(s.registrar())
	if err != nil {
		return err
	}
	return runtimeClasses(ctx, client)
}

func runtimeClasses(ctx context.Context, client kubernetes.Interface) error {
	f := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(slimHandlers))
	nodes := f.Core().V1().Nodes().Informer()
	made := map[string]bool{} // of the controller's only worker
	c := &controller.Controller[string]{
		Name: "runtime-classes", Workers: 1,
		Sources: []controller.Source[string]{{Informer: nodes, Keys: func(o metav1.Object) (handlers []string) {
			for _, h := range o.(*corev1.Node).Status.RuntimeHandlers {
				handlers = append(handlers, h.Name)
			}
			return handlers
		}}},
		Reconcile: func(ctx context.Context, handler string) (time.Duration, error) {
			if made[handler] {
				return 0, nil
			}
			_, err := client.NodeV1().RuntimeClasses().Create(ctx, &nodev1.RuntimeClass{
				ObjectMeta: metav1.ObjectMeta{Name: containerruntime.RuntimeClass(handler)}, Handler: handler,
			}, metav1.CreateOptions{})
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return 0, fmt.Errorf("make the RuntimeClass of %s: %w", handler, err)
			}
			made[handler] = true
			return 0, nil
		},
	}
	ctx, cancel := context.WithCancel(ctx)
	f.StartWithContext(ctx)
	defer f.Shutdown()
	defer cancel() // before Shutdown, which waits for the informers
	return c.Run(ctx)
}

// slimHandlers keeps of a Node its handlers that have a class.
func slimHandlers(o any) (any, error) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	slim := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion}}
	for _, h := range n.Status.RuntimeHandlers {
		if containerruntime.RuntimeClass(h.Name) != "" {
			slim.Status.RuntimeHandlers = append(slim.Status.RuntimeHandlers, corev1.NodeRuntimeHandler{Name: h.Name})
		}
	}
	return slim, nil
}
