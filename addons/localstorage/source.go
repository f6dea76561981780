package localstorage

import (
	"context"
	"encoding/json"
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/addons/localstorage/driver"
)

const snapshotGroup = "snapshot.storage.k8s.io"

// copied says whether a claim's source is a claim or a snapshot. Others are
// populators' affair. Pure.
func copied(ref *corev1.TypedObjectReference) bool {
	group := ""
	if ref.APIGroup != nil {
		group = *ref.APIGroup
	}
	return group == "" && ref.Kind == "PersistentVolumeClaim" || group == snapshotGroup && ref.Kind == "VolumeSnapshot"
}

// source is what a claim's volume is to be a copy of, nil for nothing.
func (p *provisioner) source(ctx context.Context, c *corev1.PersistentVolumeClaim) (*csipb.VolumeContentSource, error) {
	ref := c.Spec.DataSourceRef
	switch {
	case ref == nil:
		return nil, nil
	case ref.Namespace != nil && *ref.Namespace != c.Namespace:
		return nil, fmt.Errorf("data source in namespace %s is not supported", *ref.Namespace)
	case ref.Kind == "VolumeSnapshot":
		id, err := p.snapshot(ctx, c.Namespace, ref.Name)
		return &csipb.VolumeContentSource{Type: &csipb.VolumeContentSource_Snapshot{Snapshot: &csipb.VolumeContentSource_SnapshotSource{SnapshotId: id}}}, err
	}
	from, err := p.client.CoreV1().PersistentVolumeClaims(c.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("error getting PVC %s from api server: %w", ref.Name, err)
	}
	v := p.volume(from.Spec.VolumeName)
	switch {
	case from.Status.Phase != corev1.ClaimBound || v == nil:
		return nil, fmt.Errorf("the PVC %s is not bound: its phase is %s", from.Name, from.Status.Phase)
	case v.Spec.CSI == nil || v.Spec.CSI.Driver != driver.Name:
		return nil, fmt.Errorf("the source volume %s is not of driver %s", v.Name, driver.Name)
	case v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != from.UID:
		return nil, fmt.Errorf("the source volume %s is bound to another PVC", v.Name)
	case !onNode(v, p.node):
		return nil, status.Errorf(codes.ResourceExhausted, "the source volume %s is not on node %s: it can be copied where it is", v.Name, p.node.Name)
	}
	return &csipb.VolumeContentSource{Type: &csipb.VolumeContentSource_Volume{Volume: &csipb.VolumeContentSource_VolumeSource{VolumeId: v.Spec.CSI.VolumeHandle}}}, nil
}

// snapshot is the driver's ID of a VolumeSnapshot. Its types are of a user's
// CustomResourceDefinitions; this reads the few fields that it needs.
func (p *provisioner) snapshot(ctx context.Context, namespace, name string) (string, error) {
	var snapshot struct {
		Metadata struct{ UID string }
		Status   struct {
			BoundVolumeSnapshotContentName string
			ReadyToUse                     bool
		}
	}
	if err := p.get(ctx, &snapshot, "namespaces", namespace, "volumesnapshots", name); err != nil {
		return "", fmt.Errorf("error getting snapshot %s from api server: %w", name, err)
	}
	if !snapshot.Status.ReadyToUse || snapshot.Status.BoundVolumeSnapshotContentName == "" {
		return "", fmt.Errorf("snapshot %s is not Ready", name)
	}
	var content struct {
		Spec struct {
			Driver            string
			VolumeSnapshotRef struct{ UID string }
		}
		Status struct{ SnapshotHandle string }
	}
	if err := p.get(ctx, &content, "volumesnapshotcontents", snapshot.Status.BoundVolumeSnapshotContentName); err != nil {
		return "", fmt.Errorf("error getting snapshot content of %s from api server: %w", name, err)
	}
	switch {
	case content.Spec.VolumeSnapshotRef.UID != snapshot.Metadata.UID:
		return "", fmt.Errorf("snapshot %s is not bound to its content", name)
	case content.Spec.Driver != driver.Name:
		return "", fmt.Errorf("snapshot %s is of driver %s", name, content.Spec.Driver)
	case content.Status.SnapshotHandle == "":
		return "", fmt.Errorf("snapshot %s has no handle", name)
	}
	return content.Status.SnapshotHandle, nil
}

// maxSnapshot bounds what is read of an object of others.
const maxSnapshot = 1 << 20

func (p *provisioner) get(ctx context.Context, to any, path ...string) error {
	b, err := p.client.CoreV1().RESTClient().Get().AbsPath("/apis/"+snapshotGroup+"/v1").Suffix(path...).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return err
	}
	if len(b) > maxSnapshot {
		return fmt.Errorf("it has %d bytes", len(b))
	}
	return json.Unmarshal(b, to)
}
