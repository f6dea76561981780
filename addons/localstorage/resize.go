package localstorage

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/addons/localstorage/driver"
)

const storage = corev1.ResourceStorage

// pendingPeriod is how often a file system that could not grow while it is in use
// is looked at: the kubelet makes it larger at the next mount.
const pendingPeriod = 30 * time.Second

// wants says whether a claim asks for more than it has been given, or still says so: who made
// the volume larger may have ended before it could say that it did. That the volume has less in
// the cache says nothing: it is written first, and may be seen last. Pure.
func wants(c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) bool {
	return c.Status.Phase == corev1.ClaimBound && c.DeletionTimestamp == nil && v.DeletionTimestamp == nil &&
		v.Spec.ClaimRef != nil && v.Spec.ClaimRef.UID == c.UID &&
		(!has(c) || slices.Contains(tried, c.Status.AllocatedResourceStatuses[storage])) && !atNode(c)
}

// atNode says that the kubelet grows a claim's volume to the size that is asked for, or has
// refused to: then the claim is the kubelet's to write. Pure.
func atNode(c *corev1.PersistentVolumeClaim) bool {
	allocated, request := c.Status.AllocatedResources[storage], c.Spec.Resources.Requests[storage]
	state := c.Status.AllocatedResourceStatuses[storage]
	return allocated.Cmp(request) == 0 &&
		(state == corev1.PersistentVolumeClaimNodeResizeInProgress || state == corev1.PersistentVolumeClaimNodeResizeInfeasible)
}

// has says whether a claim has what it asks for. Pure.
func has(c *corev1.PersistentVolumeClaim) bool {
	request := c.Spec.Resources.Requests[storage]
	return request.Cmp(c.Status.Capacity[storage]) <= 0
}

// bytesOf is a quantity in bytes, and the largest number for more: Quantity's Value would be
// 0, or negative. Pure.
func bytesOf(q resource.Quantity) int64 {
	if q.CmpInt64(math.MaxInt64) >= 0 {
		return math.MaxInt64
	}
	return q.Value()
}

// resize gives a claim's volume the size that the claim asks for.
func (p *provisioner) resize(ctx context.Context, c *corev1.PersistentVolumeClaim) (time.Duration, error) {
	v := p.volume(c.Spec.VolumeName)
	if v == nil || !onNode(v, p.node) || !wants(c, v) {
		return 0, nil
	}
	c, err := p.update(ctx, c, resizing(c))
	if err != nil {
		return 0, err
	}
	pending := c.Status.AllocatedResourceStatuses[storage] == corev1.PersistentVolumeClaimNodeResizePending
	if !pending {
		p.events.Eventf(c, corev1.EventTypeNormal, "Resizing", "External resizer is resizing volume %s", v.Name)
	}
	call, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	request := c.Spec.Resources.Requests[storage]
	answer, err := p.calls.ControllerExpandVolume(call, &csipb.ControllerExpandVolumeRequest{
		VolumeId: v.Spec.CSI.VolumeHandle, CapacityRange: &csipb.CapacityRange{RequiredBytes: bytesOf(request)},
	})
	if err == nil && request.CmpInt64(answer.CapacityBytes) > 0 {
		err = status.Errorf(codes.OutOfRange, "the volume has %d bytes after that, and %s are asked for", answer.CapacityBytes, &request)
	}
	if err != nil {
		p.events.Eventf(c, corev1.EventTypeWarning, "VolumeResizeFailed", "resize volume %q by resizer %q failed: %s", v.Name, driver.Name, err)
		if _, serr := p.update(ctx, c, resizeFailed(c, err)); serr != nil {
			return 0, serr
		}
		if status.Code(err) == codes.ResourceExhausted {
			return capacityPeriod, nil // what else frees space on the disk sends no event
		}
		return 0, err
	}
	p.kick()
	size := *resource.NewQuantity(answer.CapacityBytes, resource.BinarySI)
	if err := p.setCapacity(ctx, v, size); err != nil {
		return 0, err
	}
	if !answer.NodeExpansionRequired {
		if _, err := p.update(ctx, c, resized(c, size)); err != nil {
			return 0, err
		}
		p.events.Event(c, corev1.EventTypeNormal, "VolumeResizeSuccessful", "Resize volume succeeded")
		return 0, nil
	}
	if !pending {
		if _, err := p.update(ctx, c, nodeResizePending(c)); err != nil {
			return 0, err
		}
		p.events.Event(c, corev1.EventTypeNormal, "FileSystemResizeRequired", "Require file system resize of volume on node")
	}
	return pendingPeriod, nil
}

// update stores a claim's status, if it is another.
func (p *provisioner) update(ctx context.Context, c, changed *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	if changed == nil {
		return c, nil
	}
	stored, err := p.client.CoreV1().PersistentVolumeClaims(c.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("mark claim %s/%s: %w", c.Namespace, c.Name, err)
	}
	return stored, nil
}

// setCapacity notes a volume's new size in its object.
func (p *provisioner) setCapacity(ctx context.Context, v *corev1.PersistentVolume, size resource.Quantity) error {
	if size.Cmp(v.Spec.Capacity[storage]) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": v.UID}, "spec": map[string]any{"capacity": map[string]string{string(storage): size.String()}},
	})
	if err != nil {
		return err
	}
	if _, err := p.client.CoreV1().PersistentVolumes().Patch(ctx, v.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("note the capacity of volume %s: %w", v.Name, err)
	}
	return nil
}

// tried are the states of a claim whose size was already asked for.
var tried = []corev1.ClaimResourceStatus{
	corev1.PersistentVolumeClaimControllerResizeInProgress, corev1.PersistentVolumeClaimControllerResizeInfeasible,
	corev1.PersistentVolumeClaimNodeResizePending,
}

// resizing is the claim while its volume is made larger, nil if it says so
// already, or that this size could not be had. Pure.
func resizing(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	request := c.Spec.Resources.Requests[storage]
	state := c.Status.AllocatedResourceStatuses[storage]
	if allocated, ok := c.Status.AllocatedResources[storage]; ok && allocated.Cmp(request) == 0 && slices.Contains(tried, state) {
		return nil
	}
	c = withState(c, corev1.PersistentVolumeClaimControllerResizeInProgress)
	c.Status.Conditions = append(withoutResize(c.Status.Conditions), condition(corev1.PersistentVolumeClaimResizing, ""))
	if c.Status.AllocatedResources == nil {
		c.Status.AllocatedResources = corev1.ResourceList{}
	}
	c.Status.AllocatedResources[storage] = request
	return c
}

func withState(c *corev1.PersistentVolumeClaim, state corev1.ClaimResourceStatus) *corev1.PersistentVolumeClaim {
	c = c.DeepCopy()
	if c.Status.AllocatedResourceStatuses == nil {
		c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{}
	}
	c.Status.AllocatedResourceStatuses[storage] = state
	return c
}

func condition(t corev1.PersistentVolumeClaimConditionType, message string) corev1.PersistentVolumeClaimCondition {
	return corev1.PersistentVolumeClaimCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(), Message: message}
}

// withoutResize are a claim's conditions without those of a resize. Pure.
func withoutResize(all []corev1.PersistentVolumeClaimCondition) []corev1.PersistentVolumeClaimCondition {
	return slices.DeleteFunc(slices.Clone(all), func(c corev1.PersistentVolumeClaimCondition) bool {
		switch c.Type {
		case corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending,
			corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError:
			return true
		}
		return false
	})
}

func isResizeError(c corev1.PersistentVolumeClaimCondition) bool {
	return c.Type == corev1.PersistentVolumeClaimControllerResizeError && c.Status == corev1.ConditionTrue
}

// infeasible are the codes of what trying again does not mend.
var infeasible = []codes.Code{codes.InvalidArgument, codes.OutOfRange, codes.NotFound}

// resizeFailed is the claim after a failure, nil if it says so already: each write
// is an event that has it looked at again, and an event of the claim has the latest
// reason. Pure.
func resizeFailed(c *corev1.PersistentVolumeClaim, err error) *corev1.PersistentVolumeClaim {
	state := corev1.PersistentVolumeClaimControllerResizeInProgress
	if slices.Contains(infeasible, status.Code(err)) {
		state = corev1.PersistentVolumeClaimControllerResizeInfeasible
	}
	if c.Status.AllocatedResourceStatuses[storage] == state && slices.ContainsFunc(c.Status.Conditions, isResizeError) {
		return nil
	}
	c = withState(c, state)
	c.Status.Conditions = append(withoutResize(c.Status.Conditions), condition(corev1.PersistentVolumeClaimControllerResizeError, err.Error()))
	return c
}

// nodeResizePending is the claim whose file system is not larger yet. Pure.
func nodeResizePending(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	c = withState(c, corev1.PersistentVolumeClaimNodeResizePending)
	c.Status.Conditions = append(withoutResize(c.Status.Conditions), condition(corev1.PersistentVolumeClaimFileSystemResizePending,
		"Waiting for user to (re-)start a pod to finish file system resize of volume on node."))
	return c
}

// resized is the claim with its new size. Pure.
func resized(c *corev1.PersistentVolumeClaim, size resource.Quantity) *corev1.PersistentVolumeClaim {
	c = c.DeepCopy()
	if c.Status.Capacity == nil {
		c.Status.Capacity = corev1.ResourceList{}
	}
	c.Status.Capacity[storage] = size
	c.Status.Conditions = withoutResize(c.Status.Conditions)
	delete(c.Status.AllocatedResourceStatuses, storage)
	return c
}
