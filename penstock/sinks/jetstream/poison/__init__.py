"""Where dead letters and the records of suspended tables are kept: streams beside the main one."""
