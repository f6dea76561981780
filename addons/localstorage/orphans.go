package localstorage

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/internal/localpath"
)

// orphanPeriod is how often volumes are looked for that nobody knows of.
const orphanPeriod = time.Hour

func feedOnce(ctx context.Context, ready func(), add func(string)) error {
	add("")
	ready()
	<-ctx.Done()
	return nil
}

// orphans removes volumes that were made for a claim which went before their
// PersistentVolume was stored, by a process that ended between the two. What the
// API server says now counts: a volume whose object was ever stored is none.
func (p *provisioner) orphans(ctx context.Context) error {
	all := p.store.Unsaved()
	if len(all) == 0 {
		return nil
	}
	claims, err := p.client.CoreV1().PersistentVolumeClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list claims: %w", err)
	}
	wanted := map[string]bool{}
	for i := range claims.Items {
		wanted[volumeName(&claims.Items[i])] = true
	}
	for _, v := range all {
		if !strings.HasPrefix(v.Name, localpath.VolumePrefix) { // another caller of the driver made it
			continue
		}
		_, err := p.client.CoreV1().PersistentVolumes().Get(ctx, v.Name, metav1.GetOptions{})
		switch {
		case err == nil:
			err = p.store.Save(v.ID)
		case apierrors.IsNotFound(err) && !wanted[v.Name]:
			slog.InfoContext(ctx, "remove a volume whose claim went while it was made", "volume", v.ID)
			err = p.store.Delete(v.ID)
		case apierrors.IsNotFound(err):
			err = nil // its claim is worked on
		}
		if err != nil {
			return err
		}
	}
	return nil
}
