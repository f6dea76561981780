package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/volume"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/watchcache"
	"knarr/internal/localpath"
)

// localVolumes keeps a node's provisioner of local volumes to claims that the node was
// given: a node that was taken over would else draw any claim, and the pod with it, to
// itself. What an expression can say of the volume alone is in the provisioners' own
// admission policy; this asks for the claim, which an expression cannot.
type localVolumes struct{ cache *watchcache.Cache }

func (*localVolumes) Name() string { return "LocalVolumes" }

func (l *localVolumes) Validate(ctx context.Context, a *admission.Attributes) (err error) {
	if a.User == nil || a.Subresource != "" || !slices.Contains(a.User.GetGroups(), localpath.Group) {
		return nil
	}
	node, named := strings.CutPrefix(a.User.GetName(), localpath.UserPrefix)
	if !named || node == "" {
		return forbidden(a, fmt.Errorf("could not determine node from user %q", a.User.GetName()))
	}
	switch o := a.Object.(type) {
	case *corev1.PersistentVolume:
		if a.Operation == admission.Create {
			err = l.made(ctx, node, o)
		}
	case *corev1.PersistentVolumeClaim:
		if old, ok := a.Old.(*corev1.PersistentVolumeClaim); ok && old.Annotations[volume.AnnSelectedNode] == "" && o.Annotations[volume.AnnSelectedNode] != "" {
			err = l.taken(ctx, old)
		}
	}
	if err != nil {
		return forbidden(a, err)
	}
	return nil
}

// made looks at a volume that a node makes: its claim is there, is the node's and has none.
// The store is asked: the cache may not know yet to whom the claim was given.
func (l *localVolumes) made(ctx context.Context, node string, v *corev1.PersistentVolume) error {
	ref := v.Spec.ClaimRef
	if ref == nil || ref.Namespace == "" || ref.Name == "" || ref.UID == "" || v.Name != localpath.VolumeName(ref.UID) {
		return errors.New("a node may make volumes only for one claim each, named by its UID")
	}
	c, err := stored[*corev1.PersistentVolumeClaim](ctx, l.cache, corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), ref.Namespace+"/"+ref.Name, ref.Name)
	if err != nil {
		return err
	}
	class := volume.GetPersistentVolumeClaimClass(c)
	switch {
	case c.UID != ref.UID:
		return fmt.Errorf("claim %s/%s is another one than the volume names", ref.Namespace, ref.Name)
	case c.Spec.VolumeName != "" && c.Spec.VolumeName != v.Name:
		return fmt.Errorf("claim %s/%s has a volume", ref.Namespace, ref.Name)
	case c.Annotations[volume.AnnSelectedNode] != node:
		return fmt.Errorf("claim %s/%s was not given to node %s", ref.Namespace, ref.Name, node)
	case v.Spec.StorageClassName != class:
		return fmt.Errorf("claim %s/%s is of class %q, the volume is not", ref.Namespace, ref.Name, class)
	}
	_, err = l.class(ctx, class)
	return err
}

// taken looks at a claim that nobody has and a node takes. Of a class that waits it is the
// scheduler that says which node has it.
func (l *localVolumes) taken(ctx context.Context, c *corev1.PersistentVolumeClaim) error {
	class, err := l.class(ctx, volume.GetPersistentVolumeClaimClass(c))
	if err != nil {
		return err
	}
	if m := class.VolumeBindingMode; m != nil && *m != storagev1.VolumeBindingImmediate {
		return fmt.Errorf("claims of class %q are given to a node by the scheduler", class.Name)
	}
	return nil
}

// class is the storage class of that name, if nodes serve it.
func (l *localVolumes) class(ctx context.Context, name string) (*storagev1.StorageClass, error) {
	class, err := lookup[*storagev1.StorageClass](ctx, l.cache, storagev1.SchemeGroupVersion.WithResource("storageclasses"), name, name)
	if err != nil {
		return nil, err
	}
	if !localpath.Serves(class.Provisioner) {
		return nil, fmt.Errorf("class %q is of provisioner %s", name, class.Provisioner)
	}
	return class, nil
}
