"""What a run found, on numpy alone: kept sets, tables, words. Opens without torch."""
