package containerruntime

import (
	"context"
	"log/slog"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"google.golang.org/grpc"

	"knarr/internal/run"
)

// ImageChanges reports images that came, changed or went in the containerd
// behind conn, until ctx ends. Changes in quick succession are reported once, and
// one more is reported whenever some may have been missed.
func ImageChanges(ctx context.Context, conn *grpc.ClientConn) (<-chan struct{}, error) {
	client, err := connect(conn, containerd.WithDefaultNamespace(imageNamespace))
	if err != nil {
		return nil, err
	}
	changes := make(chan struct{}, 1)
	run.Go("image events", func() {
		for delay := 100 * time.Millisecond; ctx.Err() == nil; delay = min(2*delay, time.Minute) {
			err := readImageEvents(ctx, client, changes)
			if ctx.Err() == nil {
				slog.Debug("image events", "err", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(delay):
			}
		}
	})
	return changes, nil
}

// readImageEvents passes events on until they cannot be had.
func readImageEvents(ctx context.Context, client *containerd.Client, changes chan<- struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, errs := client.Subscribe(ctx, `topic~="^/images/"`)
	for {
		select {
		case changes <- struct{}{}: // the first time: what came before
		default:
		}
		select {
		case <-events:
		case err := <-errs:
			return err
		}
	}
}
