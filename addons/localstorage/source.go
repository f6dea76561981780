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
	"knarr/internal/apipath"
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
		return nil, elsewhere("the source volume "+v.Name, hostOf(v))
	}
	return &csipb.VolumeContentSource{Type: &csipb.VolumeContentSource_Volume{Volume: &csipb.VolumeContentSource_VolumeSource{VolumeId: v.Spec.CSI.VolumeHandle}}}, nil
}

// snapshot is the driver's ID of a VolumeSnapshot. Its types are of a user's
// CustomResourceDefinitions; this reads the few fields that it needs.
func (p *provisioner) snapshot(ctx context.Context, namespace, name string) (string, error) {
	var snapshot struct {
		Metadata struct{ Namespace, Name, UID string }
		Status   struct {
			BoundVolumeSnapshotContentName string
			ReadyToUse                     bool
		}
	}
	if err := p.get(ctx, &snapshot, "namespaces", namespace, "volumesnapshots", name); err != nil {
		return "", fmt.Errorf("error getting snapshot %s from api server: %w", name, err)
	}
	if snapshot.Metadata.Namespace != namespace || snapshot.Metadata.Name != name {
		return "", fmt.Errorf("snapshot %s is another's", name)
	}
	if !snapshot.Status.ReadyToUse || snapshot.Status.BoundVolumeSnapshotContentName == "" {
		return "", fmt.Errorf("snapshot %s is not Ready", name)
	}
	var content snapshotContent
	if err := p.get(ctx, &content, "volumesnapshotcontents", snapshot.Status.BoundVolumeSnapshotContentName); err != nil {
		return "", fmt.Errorf("error getting snapshot content of %s from api server: %w", name, err)
	}
	return content.handle(namespace, name, snapshot.Metadata.UID, p.node.Name)
}

// A snapshotContent is what is read of a VolumeSnapshotContent.
type snapshotContent struct {
	Metadata struct{ Labels map[string]string }
	Spec     struct {
		Driver            string
		VolumeSnapshotRef struct{ Namespace, Name, UID string }
	}
	Status struct{ SnapshotHandle string }
}

// snapshotNode is the label by which external-snapshotter says which node's sidecar
// took a snapshot.
const snapshotNode = "snapshot.storage.kubernetes.io/managed-by"

// handle is the driver's ID of the snapshot of that name and UID, if it is on the node.
// Pure.
func (c *snapshotContent) handle(namespace, name, uid, node string) (string, error) {
	ref := &c.Spec.VolumeSnapshotRef
	switch at := c.Metadata.Labels[snapshotNode]; {
	case ref.Namespace != namespace || ref.Name != name || ref.UID != uid:
		return "", fmt.Errorf("snapshot %s is not bound to its content", name)
	case c.Spec.Driver != driver.Name:
		return "", fmt.Errorf("snapshot %s is of driver %s", name, c.Spec.Driver)
	case c.Status.SnapshotHandle == "":
		return "", fmt.Errorf("snapshot %s has no handle", name)
	case at != "" && at != node:
		return "", elsewhere("the snapshot "+name, at)
	}
	return c.Status.SnapshotHandle, nil
}

// elsewhere is why a node makes no copy of what another one has.
func elsewhere(what, node string) error {
	return status.Errorf(codes.ResourceExhausted, "%s is on node %s and can be copied there alone: the claim waits for that node", what, node)
}

// maxSnapshot bounds what is read of an object of others.
const maxSnapshot = 1 << 20

// get reads an object of external-snapshotter's. A claim's data source may have any name.
func (p *provisioner) get(ctx context.Context, to any, path ...string) error {
	if err := apipath.Check(path...); err != nil {
		return err
	}
	b, err := p.client.CoreV1().RESTClient().Get().AbsPath("/apis/"+snapshotGroup+"/v1").Suffix(path...).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return err
	}
	if len(b) > maxSnapshot {
		return fmt.Errorf("it has %d bytes", len(b))
	}
	return json.Unmarshal(b, to)
}
