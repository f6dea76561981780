package cronjob

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestLatest(t *testing.T) {
	at := func(s string) time.Time {
		v, err := time.Parse(time.DateTime, s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, c := range []struct {
		schedule, last, now string
		deadline            *int64
		want                string
		missed              int64
	}{
		{"0 * * * *", "2026-01-01 00:00:00", "2026-01-01 00:59:59", nil, "", 0},
		{"0 * * * *", "2026-01-01 00:00:00", "2026-01-01 01:00:00", nil, "2026-01-01 01:00:00", 1},
		{"0 * * * *", "2026-01-01 00:00:00", "2026-01-02 01:30:00", nil, "2026-01-02 01:00:00", 25},
		{"*/1 * * * *", "2020-01-01 00:00:00", "2026-01-01 00:00:30", nil, "2026-01-01 00:00:00", 3156480},
		{"*/1 * * * *", "0002-01-01 00:00:00", "2026-01-01 00:00:30", nil, "2026-01-01 00:00:00", 52596000},
		{"0 * * * *", "2026-01-01 00:00:00", "2026-01-02 01:30:00", new(int64(60)), "", 0},
		{"0 9 * * 1-5", "2026-01-02 09:00:00", "2026-01-05 10:00:00", nil, "2026-01-05 09:00:00", 1},
	} {
		cron := &batchv1.CronJob{Spec: batchv1.CronJobSpec{Schedule: c.schedule, StartingDeadlineSeconds: c.deadline},
			Status: batchv1.CronJobStatus{LastScheduleTime: &metav1.Time{Time: at(c.last)}}}
		schedule, err := parse(cron)
		if err != nil {
			t.Fatal(err)
		}
		due, missed := latest(cron, schedule, at(c.now))
		got := ""
		if !due.IsZero() {
			got = due.Format(time.DateTime)
		}
		if got != c.want || missed != c.missed {
			t.Errorf("%s since %s at %s: got %s, %d missed; want %s, %d", c.schedule, c.last, c.now, got, missed, c.want, c.missed)
		}
	}
	if _, err := parse(&batchv1.CronJob{Spec: batchv1.CronJobSpec{Schedule: "TZ=0"}}); err == nil {
		t.Error("a time zone alone is accepted")
	}
}
