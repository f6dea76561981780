package cluster

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"knarr/node/containerruntime"
	"knarr/node/containerruntime/imagesdir"
)

// importImages follows the directory of images until ctx ends.
func (n *node) importImages(ctx context.Context, rt *containerruntime.Runtime) {
	if err := n.followImages(ctx, rt); err != nil && ctx.Err() == nil {
		slog.WarnContext(ctx, "images of the directory are not imported", "dir", n.layout.images(), "err", err)
	}
}

func (n *node) followImages(ctx context.Context, rt *containerruntime.Runtime) error {
	conn, err := rt.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	store, err := rt.Images(conn)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(n.as.kubelet)
	if err != nil {
		return err
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	events := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet", Host: n.opts.NodeName})
	about := &corev1.ObjectReference{Kind: "Node", Name: n.opts.NodeName, UID: types.UID(n.opts.NodeName)} // as the kubelet's events
	return imagesdir.New(imagesdir.Config{
		Dir: n.layout.images(), Memory: filepath.Join(n.layout.containerd(), "imported.json"), Store: store,
		Event: func(warning bool, reason, message string) {
			kind := corev1.EventTypeNormal
			if warning {
				kind = corev1.EventTypeWarning
			}
			events.Event(about, kind, reason, strings.ToValidUTF8(message[:min(len(message), maxEventText)], ""))
		},
	}).Run(ctx)
}

// progressAge is for how long a measurement of all pulls is used again: many may wait at once,
// and it looks at each manifest of the node.
const progressAge = 10 * time.Second

// pullProgress tells the kubelet how much is there of an image that is being pulled.
func pullProgress(rt *containerruntime.Runtime, conn *grpc.ClientConn) func(context.Context, string) (done, total int64, ok bool) {
	return sharedProgress(func(ctx context.Context) ([]containerruntime.Pull, error) {
		store, err := rt.Images(conn)
		if err != nil {
			return nil, err
		}
		return store.Pulls(ctx)
	})
}

// sharedProgress measures once for all callers. A call ends with its context, also one that waits
// for the measurement of another: the end of a pull waits for its calls.
func sharedProgress(measure func(context.Context) ([]containerruntime.Pull, error)) func(context.Context, string) (done, total int64, ok bool) {
	turn := make(chan struct{}, 1) // guards the rest
	var pulls []containerruntime.Pull
	var at time.Time
	return func(ctx context.Context, image string) (int64, int64, bool) {
		select {
		case turn <- struct{}{}:
		case <-ctx.Done():
			return 0, 0, false
		}
		defer func() { <-turn }()
		if time.Since(at) >= progressAge {
			all, err := measure(ctx)
			if ctx.Err() != nil {
				return 0, 0, false
			}
			if err != nil {
				all = nil
			}
			pulls, at = all, time.Now() // when it ended: it may have taken long
		}
		p, found := containerruntime.PullIn(pulls, image)
		return p.Done, p.Total, found
	}
}
