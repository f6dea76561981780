package csi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"knarr/internal/apitest"
	"knarr/node/kubelet/volume"
)

// answers is an API server that has what it is given, by the end of its path.
type answers map[string]any

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	code, body := http.StatusNotFound, any(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: 404})
	for path, o := range a {
		if strings.HasSuffix(r.URL.Path, path) {
			code, body = http.StatusOK, o
		}
	}
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: readAll(string(b)), Request: r}, nil
}

func readAll(s string) io.ReadCloser { return io.NopCloser(strings.NewReader(s)) }

func (a answers) client(t *testing.T) kubernetes.Interface {
	c, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api", Transport: a, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func attachmentOf(name string, attached bool) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		TypeMeta:   metav1.TypeMeta{Kind: "VolumeAttachment", APIVersion: "storage.k8s.io/v1"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     storagev1.VolumeAttachmentStatus{Attached: attached, AttachmentMetadata: map[string]string{"device": "sdb"}},
	}
}

func nodeWith(names ...corev1.UniqueVolumeName) *corev1.Node {
	n := &corev1.Node{}
	for _, name := range names {
		n.Status.VolumesAttached = append(n.Status.VolumesAttached, corev1.AttachedVolume{Name: name})
	}
	return n
}

// A volume is mounted once the Node says that it is in use, which keeps it from
// being detached, and that it is attached.
func TestWaitsForAttachment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record{Driver: "d", Handle: "h", Attachment: attachmentName("h", "d", "n")}
		var changes atomic.Int32
		m := New(Config{RootDir: t.TempDir(), NodeName: "n", InUseChanged: func() { changes.Add(1) },
			Client: answers{r.Attachment: attachmentOf(r.Attachment, true)}.client(t)})
		got := make(chan map[string]string, 1)
		go func() {
			metadata, err := m.waitAttached(t.Context(), r, "/pods/a/v")
			if err != nil {
				t.Error(err)
			}
			got <- metadata
		}()
		waits := func(why string) {
			t.Helper()
			synctest.Wait()
			if len(got) > 0 {
				t.Fatal("does not wait: " + why)
			}
		}
		waits("nobody has said anything")
		name := corev1.UniqueVolumeName("kubernetes.io/csi/d^h")
		if names := m.VolumesInUse(); changes.Load() != 1 || !slices.Equal(names, []corev1.UniqueVolumeName{name}) {
			t.Fatalf("%d changes: %v", changes.Load(), names)
		}
		m.NodeChanged(nodeWith("kubernetes.io/csi/d^other", name))
		waits("not reported as in use")
		m.NodeChanged(nodeWith())
		m.ReportedInUse([]corev1.UniqueVolumeName{name})
		waits("not attached")
		m.NodeChanged(nodeWith(name))
		if metadata := <-got; metadata["device"] != "sdb" {
			t.Errorf("%v", metadata)
		}
		// In use no more, and in use again: that is to be reported anew.
		m.Forget("/pods/a")
		if names := m.VolumesInUse(); changes.Load() != 2 || len(names) > 0 {
			t.Fatalf("%d changes: %v", changes.Load(), names)
		}
		began := time.Now()
		if _, err := m.waitAttached(t.Context(), r, "/pods/b/v"); !errors.Is(err, volume.ErrTimedOut) || time.Since(began) != attachTime {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// What the Node says is believed once the VolumeAttachment says so too.
func TestAttachmentThatIsNot(t *testing.T) {
	going := attachmentOf("a", true)
	going.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	failed := attachmentOf("a", false)
	failed.Status.AttachError = &storagev1.VolumeError{Message: "rpc error: code = Internal desc = no such disk"}
	for name, c := range map[string]struct {
		api  answers
		want string
	}{
		"none":          {answers{}, "volume h has GET error for volume attachment a"},
		"not attached":  {answers{"/a": attachmentOf("a", false)}, "volume h is not attached for volume attachment a"},
		"failed":        {answers{"/a": failed}, "no such disk"},
		"being deleted": {answers{"/a": going}, "volume attachment is being deleted"},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := New(Config{RootDir: t.TempDir(), NodeName: "n", Client: c.api.client(t)})
			m.attachments.hold(uniqueName("d", "h"), "/x")
			m.ReportedInUse(m.VolumesInUse())
			m.NodeChanged(nodeWith(uniqueName("d", "h")))
			if _, err := m.waitAttached(t.Context(), record{Driver: "d", Handle: "h", Attachment: "a"}, "/x"); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

// A pod whose volume cannot be attached because its driver says that the node is
// full is told so, where the driver's limit may change; the CSINode has the new
// limit then.
func TestNodeIsFull(t *testing.T) {
	code, period := int32(codes.ResourceExhausted), int64(60)
	for name, c := range map[string]struct {
		code   *int32
		period *int64
		want   error
	}{
		"full":                  {&code, &period, volume.ErrLimit},
		"of a limit that stays": {&code, nil, volume.ErrTimedOut},
		"for another reason":    {nil, &period, volume.ErrTimedOut},
	} {
		s, _ := apitest.New(t)
		api, n := s.Client(t).StorageV1(), newNode(t)
		create := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		_, err := api.CSIDrivers().Create(t.Context(), &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: storagev1.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: c.period}}, metav1.CreateOptions{})
		create(err)
		_, err = api.CSINodes().Create(t.Context(), &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "d", NodeID: "id", Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(5))}}}}}, metav1.CreateOptions{})
		create(err)
		pv := "pv"
		a, err := api.VolumeAttachments().Create(t.Context(), &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: storagev1.VolumeAttachmentSpec{Attacher: "d", NodeName: "n", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}}}, metav1.CreateOptions{})
		create(err)
		a.Status.AttachError = &storagev1.VolumeError{Message: "full", ErrorCode: c.code}
		_, err = api.VolumeAttachments().UpdateStatus(t.Context(), a, metav1.UpdateOptions{})
		create(err)
		m, _ := n.new()
		m.Client = s.Client(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(volume.ErrTimedOut)
		if _, err := m.waitAttached(ctx, record{Driver: "d", Handle: "h", Attachment: "a"}, "/x"); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		o, err := api.CSINodes().Get(t.Context(), "n", metav1.GetOptions{})
		create(err)
		if got := *o.Spec.Drivers[0].Allocatable.Count; (got == 3) != (c.want == volume.ErrLimit) {
			t.Errorf("%s: the node can have %d", name, got)
		}
	}
}

// A driver is asked for its limit as often as its CSIDriver says.
func TestLimitsFollowTheDriver(t *testing.T) {
	n := newNode(t)
	m, _ := n.new()
	about := func(period string) {
		m.Client = answers{
			"/csidrivers/d": json.RawMessage(`{"kind":"CSIDriver","apiVersion":"storage.k8s.io/v1","metadata":{"name":"d"},"spec":{` + period + `}}`),
			"/csinodes/n":   json.RawMessage(`{"kind":"CSINode","apiVersion":"storage.k8s.io/v1","metadata":{"name":"n"}}`),
		}.client(t)
	}
	due, now := map[string]time.Time{}, time.Unix(1000, 0)
	for i, step := range []struct {
		period string
		after  time.Duration
		next   time.Duration
		asked  int
	}{
		{``, 0, time.Minute, 0}, {`"nodeAllocatableUpdatePeriodSeconds":10`, 0, 10 * time.Second, 0},
		{`"nodeAllocatableUpdatePeriodSeconds":10`, 4 * time.Second, 6 * time.Second, 0}, {`"nodeAllocatableUpdatePeriodSeconds":10`, 6 * time.Second, 10 * time.Second, 1},
		{`"nodeAllocatableUpdatePeriodSeconds":600`, 10 * time.Second, time.Minute, 2}, {``, time.Hour, time.Minute, 2},
	} {
		about(step.period)
		now = now.Add(step.after)
		if next := m.updateLimits(t.Context(), due, now); next != step.next || len(n.calls) != step.asked {
			t.Errorf("step %d: asked %v, next in %s", i, n.calls, next)
		}
	}
}

// What was mounted before a start is in use after it, until it is unmounted.
func TestVolumesInUseAfterStart(t *testing.T) {
	n := newNode(t)
	for pod, r := range map[string]record{
		"a": {Driver: "d", Handle: "h", Attachment: "x"},
		"b": {Driver: "d", Handle: "h", Attachment: "x"},
		"c": {Driver: "d", Handle: "free", Attachment: "x", Attach: notAttached},
		"e": {Driver: "d", Handle: "inline", Lifecycle: string(storagev1.VolumeLifecycleEphemeral)},
	} {
		dir := filepath.Join(n.root, "pods", pod, "volumes", "kubernetes.io~csi", "pv")
		if err := errors.Join(os.MkdirAll(dir, 0o755), note(dir, r)); err != nil {
			t.Fatal(err)
		}
	}
	_, volumes := n.new()
	m := volumes.CSI.(*Manager)
	want := []corev1.UniqueVolumeName{"kubernetes.io/csi/d^h"}
	for _, pod := range []string{"a", "c", "b"} {
		if got := m.VolumesInUse(); !slices.Equal(got, want) {
			t.Fatalf("before %s is unmounted: %v", pod, got)
		}
		if err := volumes.Unmount(context.Background(), pod); err != nil {
			t.Fatal(err)
		}
	}
	if got := m.VolumesInUse(); len(got) > 0 {
		t.Errorf("at the end: %v", got)
	}
}

// A volume may be detached whose driver wants no attaching any more, before it is
// mounted and after.
func TestAttachingTurnedOff(t *testing.T) {
	n := newNode(t) // whose driver wants none
	m, _ := n.new()
	r, err := parse(&corev1.Pod{}, volume.Spec{Name: "pv", PV: n.pv})
	if err != nil {
		t.Fatal(err)
	}
	about, err := m.about(t.Context(), "d")
	if err != nil {
		t.Fatal(err)
	}
	name := uniqueName("d", "h")
	m.attachments.hold(name, "/pods/a/v")
	rec, err := m.prepare(t.Context(), &r, "pv", about, "/pods/a/v")
	if got := m.VolumesInUse(); err != nil || rec.Attach != notAttached || len(got) > 0 {
		t.Errorf("before it is mounted: %v, %v in use, %+v", err, got, rec)
	}
	m.attachments.hold(name, "/pods/a/v")
	err = m.republish(t.Context(), &corev1.Pod{}, volume.Spec{Name: "pv", PV: n.pv}, "/pods/a/v/mount")
	if got := m.VolumesInUse(); err != nil || len(got) > 0 {
		t.Errorf("once it is mounted: %v, %v in use", err, got)
	}
}
