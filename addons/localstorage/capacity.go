package localstorage

import (
	"context"
	"fmt"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/localpath"
)

// capacityPeriod is how often free space is looked at: what else writes to the disk
// sends no event. external-provisioner has the same.
const capacityPeriod = time.Minute

// capacityLabel marks the capacities of one node.
const capacityLabel = "local-path.knarr.io/node"

func names(o metav1.Object) []string { return []string{o.GetName()} }

func classOf(o metav1.Object) []string {
	if c, ok := o.(*storagev1.CSIStorageCapacity); ok {
		return []string{c.StorageClassName}
	}
	return nil
}

// feedCapacities asks for all classes when volumes have come, grown or gone.
func (p *provisioner) feedCapacities(ctx context.Context, ready func(), add func(string)) error {
	ready()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.changed:
		}
		for _, name := range p.classes.GetStore().ListKeys() {
			add(name)
		}
	}
}

// free is how much volumes of a class may still have on this node.
func (p *provisioner) free(ctx context.Context, class *storagev1.StorageClass) (int64, error) {
	free, err := p.ask(ctx, class)
	if status.Code(err) == codes.InvalidArgument {
		return 0, nil // no volume of such a class can be made
	}
	return free, err
}

// ask asks the driver how much that is.
func (p *provisioner) ask(ctx context.Context, class *storagev1.StorageClass) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	parameters := map[string]string{}
	for k, v := range class.Parameters {
		if k != paramFSType {
			parameters[k] = v
		}
	}
	answer, err := p.calls.GetCapacity(ctx, &csipb.GetCapacityRequest{Parameters: parameters})
	return answer.GetAvailableCapacity(), err
}

// capacity keeps the object by which the scheduler knows what a class has on this
// node.
func (p *provisioner) capacity(ctx context.Context, name string) (time.Duration, error) {
	class := p.class(name)
	object := "local-path-" + hash(p.node.Name) + "-" + hash(name)
	api := p.client.StorageV1().CSIStorageCapacities(Namespace)
	o, there, err := p.capacities.GetStore().GetByKey(cache.NewObjectName(Namespace, object).String())
	if err != nil {
		return 0, err
	}
	if class == nil || !localpath.Serves(class.Provisioner) || !allows(class, p.node) {
		if !there {
			return 0, nil
		}
		if err := api.Delete(ctx, object, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("remove the capacity of class %s: %w", name, err)
		}
		return 0, nil
	}
	free, err := p.free(ctx, class)
	if err != nil {
		return 0, err
	}
	want := p.capacityOf(object, class, free)
	if !there {
		_, err = api.Create(ctx, want, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			err = nil // the cache is behind
		}
	} else if have := o.(*storagev1.CSIStorageCapacity); have.Capacity == nil || have.Capacity.Cmp(*want.Capacity) != 0 {
		have = have.DeepCopy()
		have.Capacity = want.Capacity
		_, err = api.Update(ctx, have, metav1.UpdateOptions{})
	}
	if err != nil {
		return 0, fmt.Errorf("publish the capacity of class %s: %w", name, err)
	}
	return capacityPeriod, nil
}

// capacityOf is the object for a class. It goes with the Node.
func (p *provisioner) capacityOf(object string, class *storagev1.StorageClass, free int64) *storagev1.CSIStorageCapacity {
	return &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{
			Name: object, Namespace: Namespace, Labels: map[string]string{driverLabel: Provisioner, capacityLabel: hash(p.node.Name)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: p.node.Name, UID: p.node.UID}},
		},
		NodeTopology:     &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: p.node.Labels[corev1.LabelHostname]}},
		StorageClassName: class.Name, Capacity: resource.NewQuantity(capacityStep(free), resource.BinarySI),
	}
}
