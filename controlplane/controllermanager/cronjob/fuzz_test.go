package cronjob

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Whatever a schedule, a zone and a status say, what is due is in the past and
// one of the schedule's times.
func FuzzSchedule(f *testing.F) {
	f.Add("*/5 * * * *", "Europe/Berlin", int64(1_700_000_000), int64(60))
	f.Add("@every 1h1s", "", int64(-62_000_000_000), int64(0))
	f.Add("59 23 31 2 *", "x", int64(0), int64(-1))
	f.Add("TZ=UTC * * 29 2 *", "", int64(1_582_934_340), int64(-1))
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f.Fuzz(func(t *testing.T, text, zone string, last, late int64) {
		cron := &batchv1.CronJob{Spec: batchv1.CronJobSpec{Schedule: text}}
		if zone != "" {
			cron.Spec.TimeZone = &zone
		}
		if late >= 0 {
			cron.Spec.StartingDeadlineSeconds = &late
		}
		cron.Status.LastScheduleTime = new(metav1.Unix(last%253_402_300_799, 0))
		schedule, err := parse(cron)
		if err != nil {
			return
		}
		due, missed, _ := latest(cron, schedule, now)
		if due.After(now) || missed < 0 || missed > 0 && due.IsZero() {
			t.Fatalf("due %s, %d missed", due, missed)
		}
	})
}
