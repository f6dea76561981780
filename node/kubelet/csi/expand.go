package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"knarr/node/kubelet/volume"
)

// expansionNotRequired is the annotation of claims whose volumes need nothing of
// the nodes that have them.
const expansionNotRequired = "volume.kubernetes.io/node-expansion-not-required"

// An expansion is what a node has to do for a volume that has grown.
type expansion struct {
	size resource.Quantity
	// done says that the claim's status has the size already: another node has
	// seen to it.
	done bool
	// old says that the external resizer keeps no record of what it does, as those
	// from before v1.23.
	old bool
}

// expansionOf says what a node has to do for a claim's volume, of which known is
// the size that the node has seen; nil for nothing. Pure.
func expansionOf(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume, known resource.Quantity) *expansion {
	have, size := claim.Status.Capacity[corev1.ResourceStorage], pv.Spec.Capacity[corev1.ResourceStorage]
	at := claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
	if at == "" && claim.Status.AllocatedResources == nil {
		if have.Cmp(size) < 0 {
			return &expansion{size: size, old: true}
		}
		return shared(claim, size, known)
	}
	if allocated, ok := claim.Status.AllocatedResources[corev1.ResourceStorage]; ok {
		size = allocated
	}
	switch {
	case at == corev1.PersistentVolumeClaimNodeResizePending || at == corev1.PersistentVolumeClaimNodeResizeInProgress:
		return &expansion{size: size}
	case at == "" && have.Cmp(size) >= 0:
		return shared(claim, size, known)
	}
	return nil
}

// shared is what is left to do when another node has seen to the claim: a file
// system that several nodes have grows on each.
func shared(claim *corev1.PersistentVolumeClaim, size, known resource.Quantity) *expansion {
	if known.IsZero() || known.Cmp(size) >= 0 || !slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteMany) ||
		metav1.HasAnnotation(claim.ObjectMeta, expansionNotRequired) {
		return nil
	}
	return &expansion{size: size, done: true}
}

// A growth is what is remembered of one volume's size on this node.
type growth struct {
	size resource.Quantity
	// refused is a size that the driver will not grow a volume to that is in use.
	refused resource.Quantity
	// failed says that the last attempt failed for good.
	failed bool
}

func (m *Manager) growth(handle string) growth {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.grown[handle]
}

func (m *Manager) setGrowth(handle string, g growth) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.grown[handle] = g
}

// expand grows a published volume if its claim has been granted more than it has
// on this node. path is where it is published; fresh says that no container has it yet.
func (m *Manager) expand(ctx context.Context, pod *corev1.Pod, spec volume.Spec, path string, fresh bool) error {
	r, err := parse(pod, spec)
	if err != nil || spec.Claim == nil || spec.PV == nil {
		return err
	}
	key := r.driver + "^" + r.handle
	g := m.growth(key)
	e := expansionOf(spec.Claim, spec.PV, g.size)
	if e == nil {
		if g.size.IsZero() {
			g.size = spec.Claim.Status.Capacity[corev1.ResourceStorage]
			m.setGrowth(key, g)
		}
		return nil
	}
	if g.refused.Cmp(e.size) == 0 {
		return nil
	}
	if spec.ReadOnly {
		m.eventOn(pod, spec.Claim, corev1.EventTypeWarning, "FileSystemResizeFailed", fmt.Sprintf("MountVolume.NodeExpandVolume failed for volume %q requested read-only file system", spec.Name))
		g.refused = e.size
		m.setGrowth(key, g)
		return nil
	}
	began := time.Now()
	err = m.grow(ctx, pod, spec, r, e, path)
	if !fresh { // that of a volume that is being mounted is part of this
		m.did(volume.OpGrow, record{Driver: r.driver, Migrated: r.migrated}, began, err)
	}
	return err
}

func (m *Manager) grow(ctx context.Context, pod *corev1.Pod, spec volume.Spec, r request, e *expansion, path string) error {
	d, err := m.driver(r.driver)
	if err != nil {
		return err
	}
	key, claim := r.driver+"^"+r.handle, spec.Claim
	if !e.done && !e.old {
		if claim, err = m.patchClaim(ctx, claim, true, markInProgress); err != nil {
			return fmt.Errorf("mark node expansion in progress: %w", err)
		}
	}
	if !d.expand && (e.done || e.old) {
		m.setGrowth(key, growth{size: e.size}) // nothing that this node could do
		return nil
	}
	if err := m.askToGrow(ctx, d, r, e.size, path); err != nil {
		return m.growFailed(ctx, r, claim, e, err)
	}
	m.setGrowth(key, growth{size: e.size})
	m.eventOn(pod, claim, corev1.EventTypeNormal, "FileSystemResizeSuccessful", fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", spec.Name, m.NodeName))
	if e.done {
		return nil
	}
	if _, err := m.patchClaim(ctx, claim, true, func(c *corev1.PersistentVolumeClaim) { markFinished(c, e.size) }); err != nil {
		return fmt.Errorf("mountVolume.NodeExpandVolume update pvc status failed: %w", err)
	}
	return nil
}

func (m *Manager) askToGrow(ctx context.Context, d *driver, r request, size resource.Quantity, path string) error {
	if !d.expand {
		return fmt.Errorf("NodeExpand is not supported by the CSI driver %s", r.driver)
	}
	secrets, err := m.secret(ctx, r.expandSecret)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	unlock, err := m.lock(ctx, r.handle)
	if err != nil {
		return err
	}
	defer unlock()
	_, err = d.node.NodeExpandVolume(ctx, &csipb.NodeExpandVolumeRequest{
		VolumeId: r.handle, VolumePath: path, StagingTargetPath: m.stagingPath(r), Secrets: secrets,
		CapacityRange: &csipb.CapacityRange{RequiredBytes: size.Value()}, VolumeCapability: capabilityOf(r, d, ""),
	})
	return err
}

// growFailed writes into the claim how a driver has failed, unless it may still be
// at work.
func (m *Manager) growFailed(ctx context.Context, r request, claim *corev1.PersistentVolumeClaim, e *expansion, failure error) error {
	code, final := finality(failure)
	key := r.driver + "^" + r.handle
	g := m.growth(key)
	if final && !e.done && !e.old {
		wanted := claim.Spec.Resources.Requests[corev1.ResourceStorage]
		infeasible := code == codes.InvalidArgument || code == codes.OutOfRange || code == codes.NotFound ||
			g.failed && wanted.Cmp(e.size) != 0 // the user has asked for another size since
		g.failed = true
		if _, err := m.patchClaim(ctx, claim, false, func(c *corev1.PersistentVolumeClaim) { markFailed(c, infeasible, failure) }); err != nil {
			failure = errors.Join(failure, err)
		}
	}
	if code == codes.FailedPrecondition { // not while it is in use, and the pod may go on
		g.refused, failure = e.size, nil
	}
	m.setGrowth(key, g)
	return failure
}

// finality is the code of a driver's answer, and whether the driver is through
// with the call. Pure.
func finality(err error) (codes.Code, bool) {
	st, ok := status.FromError(err)
	if !ok {
		return codes.Unknown, true // the driver was not asked
	}
	switch st.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return st.Code(), false
	}
	return st.Code(), true
}

// resizing are the conditions of a claim that are about its size.
var resizing = []corev1.PersistentVolumeClaimConditionType{
	corev1.PersistentVolumeClaimFileSystemResizePending, corev1.PersistentVolumeClaimResizing,
	corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError,
}

func setStatus(c *corev1.PersistentVolumeClaim, s corev1.ClaimResourceStatus) {
	if c.Status.AllocatedResourceStatuses == nil {
		c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{}
	}
	c.Status.AllocatedResourceStatuses[corev1.ResourceStorage] = s
}

func markInProgress(c *corev1.PersistentVolumeClaim) {
	setStatus(c, corev1.PersistentVolumeClaimNodeResizeInProgress)
}

func markFinished(c *corev1.PersistentVolumeClaim, size resource.Quantity) {
	if c.Status.Capacity == nil {
		c.Status.Capacity = corev1.ResourceList{}
	}
	c.Status.Capacity[corev1.ResourceStorage] = size
	delete(c.Status.AllocatedResourceStatuses, corev1.ResourceStorage)
	c.Status.Conditions = slices.DeleteFunc(c.Status.Conditions, func(o corev1.PersistentVolumeClaimCondition) bool {
		return slices.Contains(resizing, o.Type)
	})
}

func markFailed(c *corev1.PersistentVolumeClaim, infeasible bool, err error) {
	if infeasible {
		setStatus(c, corev1.PersistentVolumeClaimNodeResizeInfeasible)
	}
	for _, o := range c.Status.Conditions {
		if o.Type == corev1.PersistentVolumeClaimNodeResizeError && o.Status == corev1.ConditionTrue {
			return
		}
	}
	c.Status.Conditions = append(slices.DeleteFunc(c.Status.Conditions, func(o corev1.PersistentVolumeClaimCondition) bool {
		return o.Type == corev1.PersistentVolumeClaimNodeResizeError
	}), corev1.PersistentVolumeClaimCondition{
		Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
		Message: fmt.Sprintf("failed to expand pvc with %v", bounded(err)),
	})
}

// maxMessage bounds what a driver's error takes in a claim.
const maxMessage = 4 << 10

func bounded(err error) string {
	if s := err.Error(); len(s) > maxMessage {
		return s[:maxMessage]
	} else {
		return s
	}
}

// patchClaim changes a claim's status; with check only if nobody else has changed
// the claim.
func (m *Manager) patchClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim, check bool, change func(*corev1.PersistentVolumeClaim)) (*corev1.PersistentVolumeClaim, error) {
	want := claim.DeepCopy()
	change(want)
	was, err := json.Marshal(claim)
	if err != nil {
		return nil, err
	}
	is, err := json.Marshal(want)
	if err != nil {
		return nil, err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(was, is, claim)
	if err != nil {
		return nil, err
	}
	if string(patch) == "{}" {
		return claim, nil
	}
	var p map[string]any
	if err := json.Unmarshal(patch, &p); err != nil {
		return nil, err
	}
	meta := map[string]any{"uid": claim.UID}
	if check {
		meta["resourceVersion"] = claim.ResourceVersion
	}
	p["metadata"] = meta
	if patch, err = json.Marshal(p); err != nil {
		return nil, err
	}
	return m.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
}

func (m *Manager) eventOn(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim, kind, reason, message string) {
	if m.Event == nil {
		return
	}
	m.Event(pod, kind, reason, message)
	m.Event(claim, kind, reason, message)
}
