"""Where tables lie: Parquet files, in directories that a manifest names."""
